// Sets of numbers, as the protocol has them: [begin, end, begin, end, …], ends excluded.

export function toSpans(numbers) {
  const edges = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    if (edges.at(-1) === number) edges[edges.length - 1] = number + 1;
    else edges.push(number, number + 1);
  }
  return edges;
}

const MOST = 65536; // no server names more dispatches than this

// The numbers of spans that came in a message; an error if they are none.
export function* members(spans) {
  let last = -1;
  let count = 0;
  for (const edge of spans) {
    if (!Number.isSafeInteger(edge) || edge <= last) throw new RangeError("no spans");
    last = edge;
  }
  for (let at = 0; at < spans.length; at += 2) count += spans[at + 1] - spans[at];
  if (!(count <= MOST)) throw new RangeError("spans of too many numbers, or without an end");
  for (let at = 0; at < spans.length; at += 2)
    for (let number = spans[at]; number < spans[at + 1]; number++) yield number;
}
