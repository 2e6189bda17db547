// Values as bodies, and the price of a value, which a large body must not exceed 8 times.
import { Encoder, Tag, addExtension } from "cbor-x";

const PADDED = 1701737992;
const LARGE_BYTES = 1024 * 1024;
const TIMES = 8;

// The server's padded requests: [padding, value].
addExtension({ tag: PADDED, decode: ([, value]) => value });

// Plain CBOR: no records, no tag on byte strings, maps as objects.
const codec = new Encoder({
  useRecords: false,
  mapsAsObjects: true,
  tagUint8Array: false,
  variableMapSize: true,
});

export const decode = (bytes) => codec.decode(bytes);

// A copy: cbor-x uses its buffer again.
export const encode = (value) => Buffer.from(codec.encode(value));

// What the value takes where it is read, at most (docs/protocol.md, "Price").
function price(value) {
  switch (typeof value) {
    case "string":
      return 89 + 4 * Buffer.byteLength(value);
    case "object":
      if (value === null) return 9;
      if (ArrayBuffer.isView(value)) return 1000 + 2 * value.byteLength;
      if (Array.isArray(value)) return value.reduce((sum, item) => sum + price(item), 121);
      return Object.entries(value).reduce(
        (sum, [key, item]) => sum + 72 + price(key) + price(item),
        313,
      );
    default:
      return 57;
  }
}

export function encodeValue(value) {
  const body = encode(value);
  const most = Math.max(LARGE_BYTES, TIMES * body.length);
  const cost = price(value);
  if (cost <= most) return body;
  const padding = Buffer.alloc(Math.ceil(cost / TIMES) - body.length);
  return encode(new Tag([padding, value], PADDED));
}
