// Values as bodies, and the cost of a value, which the header of a large body has to say.
import { Encoder, Tag, addExtension } from "cbor-x";

const COST = 1701737992;
const PAIRS = 1701737993;
const FREE_OBJECTS = 8192;

// A body with a header: [cost, value].
addExtension({ tag: COST, decode: ([, value]) => value });
// A map with other keys than text and bytes: [key, value, key, value, ...].
addExtension({
  tag: PAIRS,
  decode: (flat) => new Map(flat.flatMap((key, i) => (i % 2 ? [] : [[key, flat[i + 1]]]))),
});

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

// All items but numbers and constants, or more (docs/protocol.md, "Cost").
function objects(value) {
  if (typeof value === "number") return value < 0 ? 1 : 0;
  if (value === null || typeof value === "boolean") return 0;
  if (typeof value !== "object") return 1;
  if (ArrayBuffer.isView(value)) return 2;
  if (Array.isArray(value)) return value.reduce((sum, item) => sum + objects(item), 1);
  return Object.values(value).reduce((sum, item) => sum + 1 + objects(item), 1);
}

export function encodeValue(value) {
  const body = encode(value);
  const count = objects(value);
  if (count <= FREE_OBJECTS) return body;
  return encode(new Tag([8 * body.length + 128 * count, value], COST));
}
