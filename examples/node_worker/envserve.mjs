// Hosts an environment for trio-envserve: the worker's side of docs/protocol.md.
//
//   serve({ name, setup(args), rollout(input, { signal, request }), teardown() })
//
// An execution begins when its dispatch arrives, and at most once.  Its outcome is kept
// until the server is known to have it, and sent again if it was lost.
import { Worker } from "node:worker_threads";
import { decode, encode, encodeValue } from "./bodies.mjs";
import { rows } from "./batches.mjs";
import { Link } from "./link.mjs";
import { Seen, members, toSpans } from "./spans.mjs";

const VERSION = 2;
const HELLO = 64, BROKEN = 65, BEAT = 66, OUTCOME = 67, MISSING = 68, DECLINED = 69, ANNOUNCED = 70;
const DISPATCH = 80, STOP = 81, STATE = 82, RETIRE = 83, START = 84, FETCH = 85;
const RESULT = 0, ERROR = 1, CANCELLED = 2;
const LONGEST_MS = 2 ** 31 - 1; // of a timer

export function serve(environment) {
  const host = new Host(environment);
  const link = new Link(
    Number(process.env.TRIO_ENVSERVE_LINK_FD),
    (frames) => host.take(frames),
    () => process.exit(1), // the server is gone
  );
  host.link = link;
}

class Host {
  link;
  #environment;
  #incarnation;
  #limits;
  #wire;
  #acknowledged = false; // whether the server has answered the hello
  #beat = 0;
  #malformed = 0;
  #seen = new Seen();
  #running = new Map(); // number -> AbortController
  #stoppedEarly = new Set();
  #kept = new Map(); // number -> outcome

  constructor(environment) {
    this.#environment = environment;
  }

  take([incarnation, header, body, ...rest]) {
    if (this.#incarnation === undefined) {
      this.#start(incarnation, decode(header), decode(body));
      return;
    }
    if (!incarnation.equals(this.#incarnation)) return;
    try {
      const [kind, ...fields] = decode(header);
      if ((body !== undefined) !== (kind === DISPATCH) || rest.length) throw new Error("frames");
      if (kind === DISPATCH)
        for (const [row, bytes] of rows(fields, body)) this.#dispatch(bytes, ...row);
      else if (kind === STOP) this.#stop(...fields.map((spans) => [...members(spans)]));
      else if (kind === STATE) this.#repair(...fields);
      else if (kind === FETCH) this.#fetch(...fields.map((spans) => [...members(spans)]));
      else if (kind === RETIRE) this.#retire();
    } catch {
      this.#malformed += 1; // it changes nothing, and what comes after it is done
    }
  }

  #say(...header) {
    this.link.send(this.#incarnation, encode(header));
  }

  async #start(incarnation, [kind], told) {
    if (kind !== START) throw new Error(`the first message is of kind ${kind}`);
    this.#incarnation = Buffer.from(incarnation);
    this.#limits = told.limits;
    this.#wire = told.wire;
    this.#live();
    try {
      await this.#environment.setup?.(told.args);
    } catch (error) {
      this.#say(BROKEN, { message: String(error?.message), traceback: String(error?.stack) });
      setTimeout(() => process.exit(3), 100); // once it is written
      return;
    }
    const capacity = this.#limits.worker_capacity ?? this.#environment.capacity ?? 256;
    const tell = () => {
      if (!this.#acknowledged)
        this.#say(HELLO, VERSION, process.pid, this.#environment.name, !!this.#environment.rerun, capacity);
      this.#say(BEAT, ++this.#beat, this.#seen.spans, { malformed: this.#malformed });
    };
    tell();
    setInterval(tell, this.#limits.beat_s * 1000);
  }

  #live() {
    const touched = new SharedArrayBuffer(8);
    const loop = new BigInt64Array(touched);
    const heartbeatMs = this.#limits.heartbeat_s * 1000;
    const touch = () => (loop[0] = BigInt(Date.now()));
    touch();
    setInterval(touch, heartbeatMs);
    new Worker(new URL("./signs.mjs", import.meta.url), {
      workerData: { descriptor: Number(process.env.TRIO_ENVSERVE_SIGNS_FD), heartbeatMs, touched },
    });
  }

  #dispatch(body, session, sequence, number, client, traceparent, late_s) {
    if (!this.#seen.add(number)) return;
    const request = { session: Buffer.from(session), sequence, number, client };
    if (this.#stoppedEarly.delete(number)) {
      const message = "it was cancelled before it began";
      this.#end(request, CANCELLED, { code: "cancelled", verdict: "DID_NOT_RUN", message }, null);
      return;
    }
    const controller = new AbortController();
    this.#running.set(number, controller);
    const lateMs = Math.ceil(1000 * (late_s ?? Infinity));
    const late = lateMs > LONGEST_MS ? new AbortController().signal : AbortSignal.timeout(lateMs);
    this.#execute(request, Buffer.from(body), controller.signal, late);
  }

  async #execute(request, body, signal, late) {
    const began = performance.now();
    const seconds = () => (performance.now() - began) / 1000;
    let asked;
    try {
      asked = decode(body);
      if (asked.kind !== "rollout") throw new Error(`a request of kind ${asked.kind}`);
    } catch (error) {
      const message = `this worker cannot read the request: ${error.message}`;
      this.#end(request, ERROR, { code: "refused", verdict: "DID_NOT_RUN", message }, null);
      return;
    }
    try {
      const value = await this.#environment.rollout(asked.input, { signal, late, request: asked });
      this.#end(request, RESULT, value ?? null, seconds());
    } catch (error) {
      const [status, record] = this.#failure(error, signal);
      this.#end(request, status, record, seconds());
    }
  }

  #failure(error, signal) {
    if (signal.aborted) {
      const message = "it was cancelled while it ran";
      return [CANCELLED, { code: "cancelled", verdict: "MAY_HAVE_RUN", message }];
    }
    const message = String(error?.message ?? error).slice(0, 8192);
    const traceback = String(error?.stack ?? "").slice(0, 65536);
    const type = String(error?.name ?? typeof error);
    const code = "rollout-failed", verdict = "RAN_AND_FAILED";
    return [ERROR, { code, verdict, message, type, traceback }];
  }

  #end(request, status, value, durationS) {
    this.#running.delete(request.number);
    let payload = status === RESULT ? encodeValue(value) : encode(value);
    if (payload.length > this.#wire.message_bytes) {
      status = ERROR;
      const message = `the outcome has ${payload.length} bytes, ${this.#wire.message_bytes} allowed`;
      payload = encode({ code: "outcome-too-large", verdict: "RAN_AND_FAILED", message });
    }
    const { session, sequence, number, client } = request;
    // A batch of one: in the place of the sizes of the bodies is null.
    const header = encode([OUTCOME, null, session, sequence, number, status, durationS]);
    const frames = [this.#incarnation, Buffer.from(client), header, payload];
    const announcement = [ANNOUNCED, session, sequence, number, payload.length];
    const large = payload.length > this.#limits.announce_bytes;
    const kept = { frames, announcement: large ? announcement : null, known: false };
    this.#kept.set(number, kept);
    this.#give(kept);
  }

  #give(kept) {
    kept.afterBeat = this.#beat;
    if (kept.announcement === null) this.link.send(...kept.frames);
    else this.#say(...kept.announcement);
  }

  #stop(numbers) {
    for (const number of numbers) {
      if (this.#running.has(number)) this.#running.get(number).abort();
      else if (!this.#seen.has(number)) this.#stoppedEarly.add(number);
    }
  }

  #fetch(numbers, later) {
    for (const number of later) {
      const kept = this.#kept.get(number);
      if (kept) kept.known = true;
    }
    for (const number of numbers) {
      const kept = this.#kept.get(number);
      if (kept?.announcement) {
        kept.announcement = null;
        this.#give(kept);
      }
    }
  }

  // What the server holds, and what differs from it here.
  #repair(beat, next, liveSpans, cancelledSpans) {
    const live = new Set(members(liveSpans));
    const cancelled = new Set(members(cancelledSpans));
    this.#acknowledged = true;
    for (const [number, controller] of this.#running)
      if (cancelled.has(number) || (number < next && !live.has(number))) controller.abort();
    for (const [number, kept] of this.#kept) {
      if (number < next && !live.has(number)) this.#kept.delete(number);
      else if (live.has(number) && kept.afterBeat < beat && !(kept.announcement && kept.known))
        this.#give(kept);
    }
    const absent = [...live].filter((number) => !this.#seen.has(number));
    const declined = absent.filter((number) => cancelled.has(number));
    const missing = absent.filter((number) => !cancelled.has(number));
    declined.forEach((number) => this.#seen.add(number));
    if (declined.length) this.#say(DECLINED, toSpans(declined));
    if (missing.length) this.#say(MISSING, toSpans(missing));
  }

  async #retire() {
    await this.#environment.teardown?.();
    process.exit(0);
  }
}
