// Messages that travel as the rows of one batch: their fields are columns, as in docs/protocol.md.

const MOST_ROWS = 64;

// Each row with its body.  A column that is an array has an item for each row, and anything
// else is the same in all of them.  Without sizes there is one row, and the frame is its body.
export function rows([sizes, ...columns], bodies) {
  if (sizes === null) return [[columns, bodies]];
  const count = sizes.length;
  const ends = sizes.map((_, row) => sizes.slice(0, row + 1).reduce((sum, size) => sum + size));
  if (!(count >= 1 && count <= MOST_ROWS) || ends.at(-1) !== bodies.length)
    throw new Error("a batch of other bodies");
  if (columns.some((column) => Array.isArray(column) && column.length !== count))
    throw new Error("a batch of other rows");
  return sizes.map((size, row) => [
    columns.map((column) => (Array.isArray(column) ? column[row] : column)),
    bodies.subarray(ends[row] - size, ends[row]),
  ]);
}
