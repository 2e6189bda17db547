// Hosts an environment for trio-envserve: the worker's side of docs/protocol.md.
//
//   serve({ name, setup(args), rollout(input, { signal, request }), teardown() })
//
// An execution begins when its dispatch arrives.  A large outcome is kept until the server
// asks for it; nothing else is kept, as the link loses nothing.
import { Worker } from "node:worker_threads";
import { decode, encode, encodeValue } from "./bodies.mjs";
import { rows } from "./batches.mjs";
import { Link } from "./link.mjs";
import { members, toSpans } from "./spans.mjs";

const VERSION = 2;
const HELLO = 64, BROKEN = 65, BEAT = 66, OUTCOME = 67, ANNOUNCED = 70;
const DISPATCH = 80, STOP = 81, CHANGED = 82, RETIRE = 83, START = 84, FETCH = 85;
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
  #epoch = Buffer.alloc(0); // of another server that has taken this worker over
  #heard = 0; // messages of that server
  #sent = 0; // messages to it, but for beats
  #malformed = 0;
  #running = new Map(); // number -> AbortController
  #held = new Map(); // number -> announced outcome

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
      const dispatches = kind === DISPATCH ? rows(fields, body) : [];
      this.#heard += dispatches.length || 1; // each dispatch of a batch counts
      for (const [row, bytes] of dispatches) this.#dispatch(bytes, ...row);
      if (kind === STOP) this.#stop(...fields.map((spans) => [...members(spans)]));
      else if (kind === CHANGED) this.#goOver(...fields);
      else if (kind === FETCH) this.#fetch(...fields.map((spans) => [...members(spans)]));
      else if (kind === RETIRE) this.#retire();
    } catch {
      this.#malformed += 1; // it changes nothing, and what comes after it is done
    }
  }

  #say(...header) {
    this.#send(this.#incarnation, encode(header));
  }

  #send(...frames) {
    this.#sent += 1;
    this.link.send(...frames);
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
    this.#hello();
    this.#beat();
    setInterval(() => this.#beat(), this.#limits.beat_s * 1000);
  }

  #hello() {
    const { name, rerun, capacity } = this.#environment;
    const most = this.#limits.worker_capacity ?? capacity ?? 256;
    this.#say(HELLO, VERSION, process.pid, name, !!rerun, most, this.#epoch);
  }

  // What is live here, after so many messages both ways: the server knows what that must be.
  #beat() {
    const live = toSpans([...this.#running.keys(), ...this.#held.keys()]);
    const beat = [BEAT, this.#epoch, this.#heard, this.#sent, live, { malformed: this.#malformed }];
    this.link.send(this.#incarnation, encode(beat));
  }

  // Another server goes on with this worker: it is told what the one before may not have known.
  #goOver(epoch) {
    this.#epoch = Buffer.from(epoch);
    this.#heard = this.#sent = 0;
    this.#hello();
    for (const { announcement } of this.#held.values()) this.#say(...announcement);
    this.#beat();
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
    const request = { session: Buffer.from(session), sequence, number, client };
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
    if (payload.length <= this.#limits.announce_bytes) {
      this.#send(...frames);
      return;
    }
    const announcement = [ANNOUNCED, session, sequence, number, payload.length];
    this.#held.set(number, { frames, announcement });
    this.#say(...announcement);
  }

  #stop(numbers) {
    for (const number of numbers) this.#running.get(number)?.abort();
  }

  #fetch(numbers, unwanted) {
    for (const number of numbers) {
      const held = this.#held.get(number);
      if (held) this.#send(...held.frames);
      this.#held.delete(number);
    }
    for (const number of unwanted) this.#held.delete(number);
  }

  async #retire() {
    await this.#environment.teardown?.();
    process.exit(0);
  }
}
