"""From a specification to an environment; mostly: what is said when it is wrong."""

import functools
import sys
import textwrap

import pytest

from trio_envserve.core.errors import ConfigError
from trio_envserve.envs import load
from trio_envserve.envs.arithmetic import Arithmetic
from trio_envserve.envs.loading import check_spec

MODULE = """
    class Plain:
        def run_rollout(self, rollout):
            return 1

    class Trio:
        name = "my-name"
        rerun = True

        def __init__(self, size=3, *, colour="red"):
            self.size = size

        async def run_rollout(self, rollout):
            return 1

    class Nested:
        Inner = Plain

    def factory(size=3):
        return Trio(size)

    def rollout_function(rollout):
        return 1

    def makes_a_function():
        async def run(rollout):
            return 2
        return run

    def broken():
        return {}["missing"]

    def from_config():
        from trio_envserve.core.errors import ConfigError
        raise ConfigError("colour must be red")

    async def async_factory():
        return Trio()

    ready = Plain()
    number = 7
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder on the path with a package; what is imported from it is forgotten."""
    package = tmp_path / "envserve_sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(textwrap.dedent(MODULE))
    (package / "needs.py").write_text("import envserve_not_there\n")
    (package / "wrong.py").write_text("def f(:\n")
    (package / "config.py").write_text(
        "from trio_envserve.core.errors import ConfigError\nraise ConfigError('no GPU')\n"
    )
    (package / "exits.py").write_text("raise SystemExit(2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    made = str(tmp_path)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(made) or name == "envserve_sample":
            del sys.modules[name]
    sys.path[:] = [each for each in sys.path if not each.startswith(made)]


@pytest.fixture
def installed(modules):
    """The same, with installation metadata that names entry points."""
    info = modules / "envserve_sample-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: envserve-sample\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        textwrap.dedent("""\
            [trio_envserve.envs]
            sample-tasks = envserve_sample.tasks:Trio
            sample-broken = envserve_sample.tasks:Gone
            [trio_envserve.env_schemes]
            sample = envserve_sample.tasks:Trio
        """)
    )
    return modules


def refusal(spec, args=None):
    with pytest.raises(ConfigError) as caught:
        load(spec, args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "name", "backend", "rerun"),
    [
        ("Plain", "Plain", "thread", False),
        ("Nested.Inner", "Nested.Inner", "thread", False),
        ("Trio", "my-name", "trio", True),
        ("factory", "my-name", "trio", True),
        ("rollout_function", "rollout_function", "thread", False),
        ("makes_a_function", "makes_a_function", "trio", False),
        ("ready", "ready", "thread", False),
    ],
)
def test_paths(modules, attribute, name, backend, rerun):
    env = load(f"envserve_sample.tasks:{attribute}")
    assert (env.name, env.backend, env.rerun) == (name, backend, rerun)
    assert callable(env.run_rollout)


def test_entry_points_and_schemes(installed):
    assert load("sample-tasks", {"size": 9}).environment.size == 9
    assert load("sample:12").environment.size == "12"


MISTAKES = [
    ("aritmetic", {}, "did you mean 'arithmetic'"),
    ("sample-task", {}, "did you mean 'sample-tasks'"),
    ("zzzz", {}, "known: arithmetic, sample-broken, sample-tasks"),
    ("envserve_sample.tasks", {}, "package.module:factory"),
    ("reasoning-gim:countdown", {}, "did you mean 'reasoning-gym'"),
    ("sample:", {}, "needs a name after the colon"),
    ("sample-broken", {}, "entry point 'sample-broken' is broken"),
    (
        "envserve_sampel:x", {},
        "No module named 'envserve_sampel'; did you mean 'envserve_sample'?",
    ),
    ("envserve_sample.taks:Trio", {}, "did you mean 'envserve_sample.tasks'?"),
    # `venv`, which is a little like it, is in every interpreter
    ("my_env:Foo", {}, "No module named 'my_env'; the working directory is"),
    (
        "envserve_sample.tasks:facotry", {},
        "envserve_sample.tasks has no 'facotry'; did you mean 'factory'",
    ),
    ("envserve_sample.tasks:Nested.Iner", {}, "Nested has no 'Iner'; did you mean 'Inner'"),
    ("envserve_sample.tasks:", {}, "needs an attribute"),
    ("envserve_sample.tasks:Trio", {"colur": "blue"}, "did you mean 'colour'?"),
    ("envserve_sample.tasks:Trio", {"colur": "blue"}, "it takes: size, colour"),
    ("envserve_sample.tasks:broken", {"x": 1}, "it takes: no arguments"),
    ("envserve_sample.tasks:ready", {"x": 1}, "takes no arguments"),
    (
        "envserve_sample.needs:x", {},
        "importing envserve_sample.needs failed: No module named 'envserve_not_there'",
    ),
    ("envserve_sample.config:x", {}, "no GPU"),
    ("envserve_sample.wrong:x", {}, "failed: SyntaxError"),
    ("envserve_sample.exits:x", {}, "failed: SystemExit: 2"),
    ("envserve_sample.tasks:from_config", {}, "colour must be red"),
    ("envserve_sample.tasks:async_factory", {}, "in the environment's setup()"),
    (
        "envserve_sample.tasks:number", {},
        "number is not an environment: int has no run_rollout(rollout)",
    ),
    (object(), {}, "is not an environment"),
    (
        type("Mistyped", (), {"run_rolout": lambda self, rollout: 1})(), {},
        "has no run_rollout(rollout); it has run_rolout",
    ),
    (dict, {}, "is not an environment"),  # no signature to compare arguments with
]  # fmt: skip


@pytest.mark.parametrize(("spec", "args", "told"), MISTAKES)
def test_mistake_is_told_with_what_to_write(installed, spec, args, told):
    assert told in refusal(spec, args)


def test_files(modules, monkeypatch):
    file = modules / "envserve_sample" / "tasks.py"
    assert load(f"{file}:Trio", {"size": 4}).environment.size == 4
    monkeypatch.chdir(file.parent)
    assert load("tasks.py:Nested.Inner").name == "Nested.Inner"
    assert load("./tasks.py:rollout_function").backend == "thread"
    assert "there is no file task.py; did you mean 'tasks.py'" in refusal("task.py:Trio")
    assert "tasks.py has no 'Tri'; did you mean 'Trio'" in refusal("tasks.py:Tri")
    assert "needs an attribute" in refusal("tasks.py:")
    for name, told in (("needs", "importing needs.py failed: No module"), ("config", "no GPU")):
        assert refusal(f"{name}.py:x").startswith(told)


def test_a_file_without_a_name_in_it_is_told_with_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "class Helper: pass\nclass Game:\n    def reset(self): pass\n"
        "async def play(rollout): pass\ndef make(level): pass\n"
    )
    (tmp_path / "broken.py").write_text("class Game(:\n")
    for spec in ("mine.py", "mine"):
        assert "did you mean 'mine.py:Game' or 'mine.py:play'?" in refusal(spec)
    assert "a path needs an attribute" in refusal("broken.py")


def test_a_file_is_imported_once_and_hides_no_module(modules, monkeypatch):
    (modules / "random.py").write_text("import envserve_near\nmade = []\ndef f(rollout): pass\n")
    (modules / "envserve_near.py").write_text("")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(modules)])
    before = sys.modules["random"]
    first = load(f"{modules}/random.py:f")
    assert load(f"{modules}/random.py:f").run_rollout is first.run_rollout
    assert sys.modules["random"] is before
    assert sys.path[-1] == str(modules)


def test_a_file_that_failed_is_tried_again(modules):
    file = modules / "envserve_late.py"
    file.write_text("1 / 0")
    assert "failed: ZeroDivisionError" in refusal(f"{file}:f")
    file.write_text("def f(rollout): pass  # now it is right\n")
    assert load(f"{file}:f").name == "f"


def test_the_check_of_a_name_imports_no_file(modules):
    file = modules / "envserve_unseen.py"
    file.write_text("class Seen: pass\nraise SystemExit(3)\n")
    check_spec(f"{file}:Seen")
    with pytest.raises(ConfigError, match="failed: SystemExit"):
        check_spec(f"{file}:Other")
    with pytest.raises(ConfigError, match="there is no file"):
        check_spec(f"{modules}/envserve_unsee.py:Seen")


def test_the_check_of_a_module_in_nested_namespaces_ended_with_a_bare_key_error(modules):
    folder = modules / "envserve_outer" / "inner"
    folder.mkdir(parents=True)
    (folder / "tasks.py").write_text(textwrap.dedent(MODULE))
    check_spec("envserve_outer.inner.tasks:Trio")
    with pytest.raises(ConfigError, match="has no 'Tiro'"):
        check_spec("envserve_outer.inner.tasks:Tiro")


def test_factory_that_fails_is_the_cause_of_what_is_told(modules):
    with pytest.raises(ConfigError, match="broken could not be made: KeyError") as caught:
        load("envserve_sample.tasks:broken")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("library", "spec", "told"),
    [
        ("gymnasium", "gymnasium:FrozenLake-v1", r"pip install 'trio-envserve\[gymnasium\]'"),
        ("reasoning_gym", "reasoning-gym:sums", r"pip install 'trio-envserve\[reasoning-gym\]'"),
        ("textarena", "textarena:TicTacToe-v0", r"pip install 'trio-envserve\[textarena\]'"),
        ("verifiers", "verifiers:sums", "--worker-python PATH"),
    ],
)
def test_library_that_is_missing_is_told_with_what_to_do(library, spec, told, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=told):
        load(spec)
    if library == "verifiers":
        check_spec(spec)  # which needs none


def test_library_that_lacks_a_part_of_its_own_is_told_with_that_part(modules, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "textarena"]:
        monkeypatch.delitem(sys.modules, name)
    (modules / "textarena.py").write_text("import envserve_not_there\n")
    assert "No module named 'envserve_not_there'" in refusal("textarena:TicTacToe-v0")


class CallableWithAsync:
    async def __call__(self, rollout):
        return 1


def kind(**members):
    return type("Made", (), {"run_rollout": lambda self, rollout: 1, **members})


def make(**members):
    return kind(**members)()


async def coroutine(self, *rest):
    return 1


async def generator(self, rollout):
    yield 1


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"run_rollout": 3}, "run_rollout must be a function, not int"),
        ({"run_rollout": generator}, "run_rollout is a generator"),
        ({"backend": "gevent"}, "backend must be one of trio, thread, asyncio, not 'gevent'"),
        ({"rerun": "yes"}, "rerun must be True or False, not 'yes'"),
        ({"name": 3}, "name must be a string, not 3"),
        ({"setup": coroutine}, "coroutine is a coroutine function, but the environment runs in"),
        ({"run_group": coroutine}, "is a coroutine function, but"),
        ({"backend": "thread", "run_rollout": coroutine}, "is a coroutine function, but"),
        ({"run_rollout": lambda: 1}, "called as <lambda>(rollout) (test_loading.py:"),
        ({"run_rollout": lambda self: 1}, "(the first parameter of a method is self)"),
        ({"run_rollout": lambda self, a, b: 1}, "fails: missing a required argument: 'b'"),
        ({"run_group": lambda self: []}, "called as <lambda>(rollouts) (test_loading.py:"),
    ],
)
def test_declarations_that_make_no_sense(members, message):
    assert message in refusal(make(**members))


def function(rollout):
    return 1


def test_objects_classes_and_functions_are_taken_as_they_are(monkeypatch):
    on_asyncio = kind(backend="asyncio", run_rollout=coroutine)
    environment = on_asyncio()
    found = load(environment)
    assert found.environment is environment
    assert (found.name, found.backend) == ("Made", "asyncio")
    assert load(on_asyncio).backend == "asyncio"
    assert load(functools.partial(Arithmetic, seed=4)).environment.seed == 4
    assert load(make(run_rollout=CallableWithAsync())).backend == "trio"
    assert load(make(backend="trio")).backend == "trio"
    monkeypatch.setattr(function, "backend", "trio", raising=False)
    monkeypatch.setattr(function, "rerun", True, raising=False)
    found = load(function)
    assert (found.name, found.backend, found.rerun) == ("function", "trio", True)
    with pytest.raises(ConfigError, match="would be a method of the environment: pass your own"):
        load(make()).inputs(3)


def test_attributes_of_a_function_are_those_of_its_environment(monkeypatch):
    """Its name and capacity counted, and its inputs did not, without a word."""
    told = r"would be an attribute of the function \(function.inputs = inputs\): pass your own"
    with pytest.raises(ConfigError, match=told):
        load(function).inputs(3)
    monkeypatch.setattr(function, "inputs", lambda n, seed: [seed] * n, raising=False)
    monkeypatch.setattr(function, "model_roles", ["judge"], raising=False)
    assert load(function).inputs(3, 7) == [7, 7, 7]
    assert load(function).model_roles == ("judge",)


async def _asynchronous(n, seed):
    return [n]


NO_INPUTS = [
    (lambda n, seed: None, r"inputs\(3, 0\) \(test_loading.py:\d+\) returned None, and not a"),
    (lambda n, seed: 7, "returned a value of type int, and not a list of inputs"),
    (lambda n, seed: {"word": "go"}, "returned a value of type dict, and not a list of inputs"),
    (lambda n, seed: "lease", "returned a value of type str, and not a list of inputs"),
    (_asynchronous, "is a coroutine function: it must be a plain one"),
]
TAKES_NO_SEED = r"called as <lambda>\(n, seed\) \(test_loading.py:\d+\), and that fails"


@pytest.mark.parametrize(("inputs", "told"), [*NO_INPUTS, (lambda n: [], TAKES_NO_SEED)])
def test_inputs_that_give_no_list_are_told(inputs, told):
    """None was told with a traceback of this package, and a dict gave its keys as inputs."""
    with pytest.raises(ConfigError, match=told):
        load(make(inputs=staticmethod(inputs))).inputs(3)


class WithTools:
    def reset(self):
        return "?"


@pytest.mark.parametrize(("inputs", "told"), NO_INPUTS)
def test_inputs_of_a_class_with_tools_that_were_a_dict_gave_its_keys(inputs, told):
    with pytest.raises(ConfigError, match=told):
        load(type("Made", (WithTools,), {"inputs": staticmethod(inputs)})).inputs(3)


class WithCoroutines:
    async def reset(self):
        return "?"


class InMainThread(WithTools):
    main_thread = True


@pytest.mark.parametrize(
    ("environment", "capacity"),
    [
        (kind(run_rollout=coroutine), 256),
        (kind(), 32),
        (WithTools, 64),
        (WithCoroutines, 256),
        (InMainThread, 1),
    ],
)
def test_an_environment_that_says_nothing_has_the_capacity_of_its_kind(environment, capacity):
    found = load(environment)
    assert found.capacity_by(None) == capacity
    assert found.capacity_by(7) == (1 if environment is InMainThread else 7)


def test_a_capacity_that_is_declared_holds_where_the_server_says_nothing(monkeypatch):
    monkeypatch.setattr(function, "capacity", 4, raising=False)
    few = type("Few", (WithTools,), {"capacity": 3})
    large = kind(__init__=lambda self, size=2: setattr(self, "capacity", size))
    found = [load(few), load(large, {"size": 5}), load(function)]
    assert [each.capacity_by(None) for each in found] == [3, 5, 4]
    assert [each.capacity_by(9) for each in found] == [9, 9, 9]


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "8"])
def test_a_capacity_that_is_no_number_of_rollouts_is_refused(wrong):
    with pytest.raises(ConfigError, match="capacity is how many rollouts run at once"):
        load(kind(capacity=wrong))
