// Messages over the link: frames with flags and a length, as in docs/protocol.md.
import { Socket } from "node:net";

const MORE = 1;
const LONG = 2;

export class Link {
  #socket;
  #held = Buffer.alloc(0); // the beginning of a frame that is not whole yet
  #pieces = []; // of a large frame, joined once it is whole
  #missing = 0;
  #frames = []; // of a message that is not whole yet

  // `onMessage` is given each message, an array of buffers; `onEnd` once the link is closed.
  constructor(descriptor, onMessage, onEnd) {
    this.#socket = new Socket({ fd: descriptor, readable: true, writable: true });
    this.#socket.on("data", (data) => this.#take(data, onMessage));
    this.#socket.on("close", onEnd);
    this.#socket.on("error", () => {}); // "close" comes after it
  }

  send(...frames) {
    this.#socket.cork();
    frames.forEach((frame, index) => {
      const more = index < frames.length - 1 ? MORE : 0;
      if (frame.length < 256) {
        this.#socket.write(Buffer.from([more, frame.length]));
      } else {
        const head = Buffer.alloc(9);
        head[0] = more | LONG;
        head.writeBigUInt64BE(BigInt(frame.length), 1);
        this.#socket.write(head);
      }
      this.#socket.write(frame);
    });
    this.#socket.uncork();
  }

  #take(data, onMessage) {
    if (data.length < this.#missing) {
      this.#pieces.push(data);
      this.#missing -= data.length;
      return;
    }
    let rest = Buffer.concat([this.#held, ...this.#pieces, data]);
    this.#pieces = [];
    for (;;) {
      const head = rest.length && rest[0] & LONG ? 9 : 2;
      const known = rest.length >= head;
      const size = !known ? 0 : head === 9 ? Number(rest.readBigUInt64BE(1)) : rest[1];
      if (rest.length < head + size || !known) {
        this.#held = rest;
        this.#missing = head + size - rest.length;
        return;
      }
      this.#frames.push(rest.subarray(head, head + size));
      const more = rest[0] & MORE;
      rest = rest.subarray(head + size);
      if (!more) {
        const message = this.#frames;
        this.#frames = [];
        onMessage(message);
      }
    }
  }
}
