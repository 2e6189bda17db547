"use strict";
// What the pages share.  All text of others goes through textContent: nothing here makes HTML of it.
const parts = (() => {
  const $ = (id) => document.getElementById(id);
  const seconds = (s) => s == null ? "–" : s < 0.0995 ? `${(s * 1000).toFixed(0)} ms`
    : s < 99.5 ? `${s.toFixed(1)} s` : s < 5400 ? `${(s / 60).toFixed(0)} min` : `${(s / 3600).toFixed(1)} h`;
  const count = (n) => n == null ? "–" : n < 1e5 ? String(Math.round(n)) : n.toExponential(2);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function put(cell, text, name = "") {
    if (cell.textContent !== text) cell.textContent = text;
    if (cell.className !== name) cell.className = name;
  }
  // Rows are kept by their keys, so that what has the focus keeps it.
  function rows(body, list, keyOf, make, fill) {
    const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
    list.forEach((each, index) => {
      const key = String(keyOf(each));
      let row = old.get(key);
      if (row) old.delete(key); else { row = make(each); row.dataset.key = key; }
      if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null);
      fill(row, each);
    });
    for (const row of old.values()) row.remove();
  }
  function tableRow(cells) {
    const row = document.createElement("tr");
    for (let n = 0; n < cells; n++) row.append(document.createElement("td"));
    return row;
  }
  function fillRow(row, cells) { cells.forEach(([text, name], n) => put(row.children[n], text, name)); }
  const onTheme = (redraw) => $("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  return { $, put, rows, tableRow, fillRow, seconds, count, css, onTheme };
})();
