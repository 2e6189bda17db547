"""The judge of the soak: it accepts what is right, and finds each thing that is not."""

import json
import subprocess
import sys

import pytest

from trio_envserve.lab.history import CALLERS, ENVIRONMENT, KILLER
from trio_envserve.lab.logs import prepared
from trio_envserve.lab.soak.judge import judge
from trio_envserve.lab.soak.judge_samples import SAMPLES


def only(figures, text):
    """The one problem that there is, which has this text."""
    (problem,) = figures["problems"]
    assert text in problem
    assert figures["ok"] is False
    return figures


def test_all_is_well(run):
    figures = run.judged()
    assert figures["problems"] == []
    assert figures["ok"] is True
    assert (figures["asked"], figures["answered"], figures["right"]) == (1, 1, 1)
    assert (figures["started"], figures["started_twice"], figures["lost"]) == (1, 0, 0)
    assert figures["kills"] == {"worker": 1, "client": 1, "server": 1}
    assert figures["growth_kib_per_10000"] == {"router": 100.0, "client": -10.0}
    assert figures["samples"]["server"]["begin"]["descriptors"] == 40
    assert figures["seconds"] == 100.0


def test_it_is_a_program_too(run):
    run.judged()
    command = [sys.executable, "-m", "trio_envserve.lab.soak.judge", str(run.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True
    done = subprocess.run(command[:-1], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 2


# -- nothing lost ----------------------------------------------------------------


def test_a_call_without_an_end_is_lost(run):
    run.ask(5.0, "gone")
    assert only(run.judged(), "no answer")["lost"] == 1


def test_a_killed_client_is_owed_nothing(run):
    run.ask(5.0, "gone", client="c1-1")
    figures = run.judged()
    assert (figures["ok"], figures["owed_nothing"], figures["lost"]) == (True, 1, 0)


def test_what_its_caller_withdrew_is_not_lost(run):
    run.ask(5.0, "gone")
    run.withdraw(6.0, "gone")
    figures = run.judged()
    assert (figures["ok"], figures["withdrawn"]) == (True, 1)


def test_two_answers_to_one_call_are_found(run):
    run.answer(3.0, "fine")
    assert only(run.judged(), "had one already")["answered_twice"] == 1


@pytest.mark.parametrize("how", ["wrong", "never ran", "before its end"])
def test_a_result_must_be_that_of_a_run_that_is_over(run, how):
    run.ask(5.0, "key")
    run.answer(7.0, "key")
    if how == "wrong":
        run.start(5.5, "key", "p10")
        run.end(6.0, "key", "p10")
        run.callers[-1]["right"] = False
    elif how == "before its end":
        run.start(5.5, "key", "p10")
        run.end(7.5, "key", "p10")
    assert only(run.judged(), "not the result")["wrong"] == 1


# -- nothing twice ---------------------------------------------------------------


def again(run, predecessor="dead", process="p11", **options):
    """A call whose worker is killed, and that is begun again."""
    run.ask(5.0, "key", **options)
    run.start(5.5, "key", "p12")
    run.kill_worker(6.0, "p12")
    run.start(7.0, "key", process, predecessor)
    run.end(8.0, "key", process)
    run.answer(8.5, "key")


def test_a_rerun_with_consent_after_a_proven_death_is_right(run):
    again(run, rerun=True)
    figures = run.judged()
    assert (figures["ok"], figures["rerun_with_consent"], figures["started_twice"]) == (True, 1, 0)


@pytest.mark.parametrize("rerun", [False, None])
def test_without_consent_it_is_a_second_run(run, rerun):
    again(run, rerun=rerun)
    assert only(run.judged(), "second run")["started_twice"] == 1


def test_a_rerun_while_its_predecessor_lives_is_too_early(run):
    again(run, predecessor="alive", rerun=True)
    figures = run.judged()
    assert (figures["started_twice"], figures["rerun_too_early"]) == (1, 1)


def test_a_request_of_the_measurement_must_not_run_twice(run):
    line = {"event": "start", "monotonic": 90.0, "pid": 12, "attempt": 1, "request": "s/1"}
    run.environment += [line, {**line, "event": "end", "how": "result"}]
    assert run.judged()["ok"] is True
    assert run.judged()["started"] == 2
    run.environment.append(line)
    assert only(run.judged(), "second run")["started_twice"] == 1


def test_what_nobody_asked_for_is_found(run):
    run.start(5.0, "who", "p10")
    run.end(6.0, "who", "p10")
    assert only(run.judged(), "nobody had asked")["started_unasked"] == 1


# -- errors tell the truth -------------------------------------------------------


def test_did_not_run_is_true_only_if_it_did_not(run):
    run.ask(5.0, "key", timeout_s=1.0)
    run.answer(6.0, "key", "never-started", "DID_NOT_RUN")
    figures = run.judged()
    assert (figures["ok"], figures["did_not_run"]) == (True, 1)
    run.start(5.5, "key", "p10")
    run.end(5.6, "key", "p10", how="Cancelled")
    assert only(run.judged(), "truth")["untrue"][0]["why"] == "it ran"


def test_without_a_limit_did_not_run_has_no_excuse(run):
    run.ask(5.0, "key")
    run.answer(6.0, "key", "never-started", "DID_NOT_RUN")
    assert only(run.judged(), "truth")["untrue_errors"] == 1


def test_ran_and_failed_is_true_only_of_what_began_and_had_a_limit(run):
    run.ask(5.0, "key", timeout_s=1.0)
    run.answer(6.0, "key", "deadline", "RAN_AND_FAILED")
    assert only(run.judged(), "truth")["untrue"][0]["why"] == "it had not begun"
    run.start(5.5, "key", "p10")
    run.end(6.0, "key", "p10", how="Cancelled")
    figures = run.judged()
    assert (figures["ok"], figures["ran_and_failed"]) == (True, 1)
    run.callers[-2]["timeout_s"] = None
    assert only(run.judged(), "truth")["untrue_errors"] == 1


@pytest.mark.parametrize(
    ("code", "options", "workers", "servers", "true"),
    [
        ("worker-lost", {}, 0, 0, False),
        ("worker-lost", {}, 1, 0, True),
        ("worker-lost", {"rerun": True}, 1, 0, False),  # it had another execution
        ("worker-lost", {"rerun": True}, 2, 0, False),
        ("worker-lost", {"rerun": True}, 3, 0, True),
        ("worker-lost", {"rerun": True, "max_executions": 1}, 1, 0, True),
        ("worker-lost", {"rerun": True, "max_executions": 10}, 2, 0, False),
        ("worker-lost", {"rerun": True, "max_executions": 10}, 1, 1, True),
        ("worker-lost", {"rerun": True, "max_executions": 10, "timeout_s": 1.0}, 1, 0, True),
        ("server-lost", {}, 0, 0, False),
        ("server-lost", {}, 1, 0, False),
        ("server-lost", {}, 0, 1, True),
        ("server-lost", {"rerun": True}, 0, 1, False),  # it could be issued again
        ("server-lost", {"rerun": True}, 0, 2, True),
        ("server-lost", {"rerun": True, "max_executions": 10}, 0, 2, False),
        ("server-lost", {"rerun": True, "max_executions": 10}, 0, 3, True),
        ("server-lost", {"rerun": True, "max_executions": 1}, 0, 1, True),
        ("server-lost", {"rerun": True, "timeout_s": 1.0}, 0, 1, True),
        ("no-answer", {}, 1, 1, False),
        ("no-answer", {"timeout_s": 1.0}, 0, 0, True),
        ("abandoned", {"timeout_s": 1.0}, 1, 1, False),
    ],
)
def test_may_have_run_is_true_only_if_what_was_allowed_is_used_up(
    run, code, options, workers, servers, true
):
    run.ask(5.0, "key", **options)
    run.answer(9.0, "key", code, "MAY_HAVE_RUN")
    for number in range(workers):
        run.kills("kill", 6.1 + number, what="worker", pid=90 + number, sent_s=6.0 + number)
    for number in range(servers):
        run.kill_server(6.5 + number)
    figures = run.judged()
    assert figures["may_have_run"] == 1
    assert (figures["ok"], figures["untrue_errors"]) == (true, 0 if true else 1)


@pytest.mark.parametrize(
    ("killed_s", "true"), [(3.5, False), (4.5, True), (8.5, True), (9.1, False)]
)
def test_a_death_long_before_or_after_the_call_explains_nothing(run, killed_s, true):
    run.ask(5.0, "key")
    run.answer(9.0, "key", "worker-lost", "MAY_HAVE_RUN")
    run.kills("kill", killed_s + 0.1, what="worker", pid=90, sent_s=killed_s)
    assert run.judged()["ok"] is true


@pytest.mark.parametrize(("frozen_s", "true"), [(2.0, True), (9.5, False)])
def test_a_worker_frozen_before_it_had_begun_anything_explains_what_its_server_says(
    run, frozen_s, true
):
    run.ask(5.0, "key")
    run.answer(9.0, "key", "worker-lost", "MAY_HAVE_RUN")
    run.kills("freeze", frozen_s, what="worker", pid=90)
    assert run.judged()["untrue_errors"] == 1
    run.kills("frozen-ended", frozen_s + 6.5, what="worker", pid=90)
    assert run.judged()["ok"] is true


def test_a_server_that_was_stopped_may_know_of_a_death_late(run):
    run.ask(5.0, "key")
    run.answer(9.0, "key", "worker-lost", "MAY_HAVE_RUN")
    run.kills("kill", 2.1, what="worker", pid=90, sent_s=2.0)
    assert run.judged()["untrue_errors"] == 1
    run.kills("stop", 1.5, what="server", pid=1, lasts_s=3.0)
    assert run.judged()["ok"] is True


@pytest.mark.parametrize(
    ("events", "true"),
    [([], True), ([1.0], True), ([4.5], False), ([1.0, 4.5, 4.6], False), ([1.0, 6.0], True)],
)
def test_a_client_may_know_of_its_servers_death_late_but_not_after_it_has_noticed(
    run, events, true
):
    run.kill_server(4.0)
    run.ask(5.0, "key")
    run.answer(9.0, "key", "server-lost", "MAY_HAVE_RUN")
    for at_s in events:
        run.callers.append({"event": "disconnected", "monotonic": at_s, "client": "c0-1"})
    run.callers.append({"event": "connected", "monotonic": 4.9, "client": "c1-1"})
    assert run.judged()["ok"] is true


# -- nothing goes on -------------------------------------------------------------


def test_what_still_runs_at_rest_is_found_unless_its_process_is_dead(run):
    run.ask(5.0, "key")
    run.withdraw(6.0, "key")
    run.start(5.5, "key", "p13")
    assert only(run.judged(), "still ran")["left_running"] == 1
    run.kill_worker(70.0, "p13")
    assert run.judged()["ok"] is True


def test_what_begins_at_rest_is_found(run):
    run.ask(79.0, "key")
    run.withdraw(79.5, "key")
    run.start(81.0, "key", "p13")
    assert only(run.judged(), "began at rest")["started_at_rest"] == 1


def test_a_worker_that_nobody_killed_is_found(run):
    run.ask(5.0, "key")
    run.answer(6.5, "key")
    run.start(5.5, "key", "p13")
    run.end(6.0, "key", "p13")
    run.kills("dead", 7.0, process="p13", pid=13, alive_s=6.9)
    assert only(run.judged(), "nobody had killed")["deaths_unexplained"] == 1
    run.killer[:] = [line for line in run.killer if line.get("pid") != 13]
    run.kills("dead", 60.1, process="p13", pid=13, alive_s=60.0)  # with its server
    assert run.judged()["ok"] is True


def kill_host(run, at_s, joined_s):
    run.kills("kill", at_s + 0.1, what="host", pid=2, sent_s=at_s)
    run.kills("joined", joined_s, pid=3)


def test_the_workers_of_a_killed_host_die_with_it(run):
    run.ask(5.0, "key")
    run.answer(6.5, "key")
    run.start(5.5, "key", "p13")
    run.end(6.0, "key", "p13")
    run.kills("dead", 7.3, process="p13", pid=13, alive_s=7.1)
    assert run.judged()["deaths_unexplained"] == 1
    kill_host(run, 7.0, 8.0)
    assert run.judged()["ok"] is True


@pytest.mark.parametrize(("joined_s", "true"), [(3.0, False), (6.0, True)])
def test_a_server_hears_of_its_workers_death_when_the_next_host_has_joined(run, joined_s, true):
    run.ask(5.0, "key")
    run.answer(6.1, "key", "worker-lost", "MAY_HAVE_RUN")
    run.kills("kill", 2.1, what="worker", pid=90, sent_s=2.05)
    assert run.judged()["untrue_errors"] == 1
    kill_host(run, 2.0, joined_s)
    assert run.judged()["ok"] is true


def test_a_host_that_was_never_harmed_shows_nothing(run):
    run.kills("begin", 0.0, hosts=1)
    figures = run.judged()
    assert [text.split(",")[0] for text in figures["problems"]] == [
        "no host among the kills", "no host among the stops",
    ]  # fmt: skip
    kill_host(run, 7.0, 8.0)
    run.kills("stop", 9.0, what="host", pid=3, lasts_s=1.0)
    assert run.judged()["ok"] is True


def test_a_worker_that_was_stopped_for_good_must_be_killed(run):
    run.kills("frozen-survived", 70.0, what="worker", pid=30)
    only(run.judged(), "stopped for good")


def test_who_ends_by_itself_is_named(run):
    run.kills("ended-by-itself", 70.0, who="client c0-1")
    only(run.judged(), "the client c0-1 ended by itself")


def test_a_phase_that_hangs_is_named(run):
    run.kills("hung", 70.0, phase="calm")
    only(run.judged(), "the calm did not come to its end")


# -- what is shown ---------------------------------------------------------------


@pytest.mark.parametrize(
    "left_out", [{"event": "kill", "what": "server"}, {"event": "network", "how": "stall"}]
)
def test_what_never_happened_shows_nothing(run, left_out):
    run.killer[:] = [line for line in run.killer if not left_out.items() <= line.items()]
    only(run.judged(), "nothing is shown")


def test_of_an_interrupted_run_there_are_the_figures_so_far(run):
    run.killer[:] = [line for line in run.killer if line["event"] not in ("end", "rest")]
    run.samples[:] = run.samples[:2]
    run.ask(5.0, "key")
    figures = only(run.judged(), "not finished")
    assert (figures["asked"], figures["pending"], figures["lost"]) == (2, 1, 0)


def test_logs_that_cannot_be_read_are_no_success(run):
    run.judged()
    (run.directory / "callers.jsonl").write_text("{")
    only(judge(run.directory), "cannot be read")


def test_a_run_that_has_hardly_begun_has_figures_too(tmp_path):
    figures = judge(prepared(tmp_path, (ENVIRONMENT, CALLERS, KILLER, SAMPLES)))
    assert (figures["ok"], figures["asked"]) == (False, 0)


# -- the samples -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ((1, 41, 5, 40_000), "server: 40 descriptors at the beginning, and 41 at the end"),
        ((1, 40, 6, 40_000), "server: 5 threads at the beginning, and 6 at the end"),
        ((2, 40, 5, 40_000), "server: 1 processes at the beginning, and 2 at the end"),
    ],
)
def test_what_is_not_given_back_is_found(run, held, text):
    run.sample("end", server=held, worker=(2, 42, 8, 36_000))
    only(run.judged(), text)


def test_less_than_at_the_beginning_is_given_back_but_a_missing_process_is_not(run):
    run.sample("end", server=(1, 39, 4, 50_000), worker=(2, 42, 8, 36_000))
    assert run.judged()["ok"] is True
    run.sample("end", server=(1, 40, 5, 40_000), worker=(1, 21, 4, 36_000))
    only(run.judged(), "worker: 2 processes at the beginning, and 1 at the end")


def test_another_file_is_found(run):
    run.sample("end", server=(1, 40, 5, 40_000), worker=(2, 42, 8, 36_000))
    run.samples[-1]["locks"] = 3
    only(run.judged(), "2 locks at the beginning, and 3 at the end")


def test_who_is_left_over_is_found(run):
    run.sample("closed", soak=(1, 9, 1, 30_000), guard=(1, 2, 1, 10_000))
    only(run.judged(), "1 processes are left over: guard")


@pytest.mark.parametrize("who", ["router", "client"])
def test_growth_is_found(run, who):
    run.samples[:] = [line for line in run.samples if line["event"] != "steady"]
    for number in range(4):
        run.steady(**{"router": 40_000, "client": 34_000, who: 40_000 + 1024 * number})
    only(run.judged(), f"the {who} grew by 1024 KiB")


def test_what_the_first_block_brings_is_no_growth(run):
    run.sample("end", server=(1, 40, 5, 10_000), worker=(2, 42, 8, 36_000))
    assert run.judged()["ok"] is True


def test_a_wrong_answer_in_the_measurement_is_found(run):
    run.steady(40_400, 34_000, right=9_999)
    only(run.judged(), "1 of 10000 requests of the measurement")


def test_samples_that_are_not_there_are_missed(run):
    run.samples[:] = [line for line in run.samples if line.get("phase") != "begin"]
    only(run.judged(), "are missing")


def test_where_nothing_can_be_sampled_that_is_said(run):
    run.samples[:] = [{"event": "missing", "text": "no /proc"}]
    figures = run.judged()
    assert (figures["ok"], figures["missing"]) == (True, ["no /proc"])
    assert figures["growth_kib_per_10000"] == {}
