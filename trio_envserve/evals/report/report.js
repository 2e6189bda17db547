// A report.  All text of others goes through textContent: nothing here makes HTML of it.
(() => {
  const { $, put, rows, tableRow, fillRow, seconds, count, css, onTheme } = parts;
  const MANY = 100, SLICE_MS = 12, IDLE_S = 60, GAP_S = 5, LABEL = 90;
  const data = JSON.parse($("data").textContent), summary = data.summary;

  // -- words -------------------------------------------------------------------
  const figure = (n) => n == null ? "–" : typeof n !== "number" ? n
    : n && (Math.abs(n) < 1e-4 || Math.abs(n) >= 1e9) ? n.toExponential(2) : String(Number(n.toPrecision(4)));
  const withError = (mean, error) => { // as many digits as the error has one of
    const digits = Math.max(0, -Math.floor(Math.log10(error))); // infinite for an error of 0
    const [first, second] = digits > 10 || Math.max(Math.abs(mean), error) >= 1e9
      ? [figure(mean), figure(error)] : [mean.toFixed(digits), error.toFixed(digits)];
    return `${first} ± ${second}`;
  };
  const whole = (n) => n == null ? "–" : n.toLocaleString("en");
  const percent = `${Math.round(summary.reward.confidence * 100)}% interval`;
  const clock = (at_s, digits) => new Date(at_s * 1000).toTimeString().slice(0, 8)
    + (digits ? (at_s % 1).toFixed(digits).slice(1) : "");
  const names = Object.keys(data.columns);
  const rollouts = data.columns.index.map((_, number) =>
    Object.fromEntries([["number", number], ...names.map((name) => [name, data.columns[name][number]])]));
  const nameOf = (one) => `input ${one.index}, repeat ${one.repeat}`;
  const detailsOf = (one) => JSON.parse($(`d${one.number}`).textContent);

  // -- summary -----------------------------------------------------------------
  function showSummary() {
    const { reward, usage } = summary;
    document.title = `${data.file} · report`;
    put($("title"), data.file);
    put($("about"), [...data.about, `${whole(rollouts.length)} rollouts of ${whole(summary.inputs)} inputs`].join(", "));
    const told = data.notes.map((note) => `${data.file}: ${note}.`);
    put($("alarm"), told.join("\n"), "alarm");
    $("alarm").hidden = !told.length;
    const tiles = [
      ["mean reward", reward.std_error == null ? figure(reward.mean) : withError(reward.mean, reward.std_error),
        reward.low == null ? `of ${reward.inputs} inputs` : `${percent}: ${figure(reward.low)} to ${figure(reward.high)}, ${whole(reward.inputs)} inputs`],
      ["results", whole(summary.results), `${whole(summary.errors)} errors`],
      ["execution", seconds(summary.duration_s.p50), `p50; the p99 is ${seconds(summary.duration_s.p99)}`],
      ["wait", seconds(summary.took_s.p50), `p50; the p99 is ${seconds(summary.took_s.p99)}`],
    ];
    const passes = Object.entries(reward.pass_at);
    if (passes.length > 1) for (const [k, each] of passes)
      tiles.push([`pass@${k}`, figure(each.mean), `of ${whole(each.inputs)} inputs, from ${figure(reward.passed_from)}`]);
    const odd = Object.entries(summary.rewards_left_out).filter(([name, n]) => name !== "types" && n);
    if (odd.length) tiles.push(["rewards left out", whole(odd.reduce((sum, [, n]) => sum + n, 0)), odd.map(([name, n]) => `${n} ${name.replaceAll("_", " ")}`).join(", ")]);
    for (const [name, n] of Object.entries(usage)) if (n) tiles.push([name, whole(n), ""]);
    rows($("tiles"), tiles, ([name]) => name, () => {
      const tile = document.createElement("div");
      tile.className = "tile";
      tile.append(...["span", "b", "span"].map((kind) => document.createElement(kind)));
      return tile;
    }, (tile, texts) => texts.forEach((text, n) => put(tile.children[n], text)));
    const errors = summary.errors_by.map((e) => [[`${e.class} (${e.code}, ${e.fault})`, "bad"], [e.verdict], [whole(e.count), "n"]]);
    rows($("errors"), errors.length ? errors : [[["none"], [""], [""]]], (cells) => cells.map(([text]) => text).join("/"), () => tableRow(3), fillRow);
    const metrics = Object.entries(summary.metrics);
    $("has-metrics").hidden = !metrics.length;
    rows($("metrics"), metrics, ([name]) => name, () => tableRow(5), (row, [name, m]) =>
      fillRow(row, [[name], ...[m.mean, m.std, m.min, m.max].map((n) => [figure(n), "n"])]));
  }

  // -- charts ------------------------------------------------------------------
  const redraws = [];
  // As many labels as there is room for, evenly.
  function spaced(labels, width) {
    const wide = 8 * Math.max(1, ...labels.map((label) => label.length)), each = Math.ceil(wide * labels.length / Math.max(width - 60, 1));
    return labels.map((label, n) => n % each ? "" : label);
  }
  function bars(id, values, labels) {
    const place = $(id), axis = { stroke: () => css("--quiet"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false } };
    const size = () => ({ width: Math.max(place.clientWidth, 200), height: 170 });
    const plot = new uPlot({
      ...size(), legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false, range: [-0.6, values.length - 0.4] }, y: { range: (u, low, high) => [Math.min(low, 0), high > 0 ? high * 1.1 : low < 0 ? 0 : 1] } },
      axes: [{ ...axis, size: 26, splits: () => values.map((_, n) => n), values: (u) => spaced(labels, u.width), grid: { show: false } }, { ...axis, size: 50 }],
      series: [{}, { stroke: () => css("--one"), fill: () => css("--one"), points: { show: false },
        paths: uPlot.paths.bars({ size: [0.8, 60] }) }],
    }, [values.map((_, n) => n), values], place);
    redraws.push(() => plot.setSize(size()));
  }
  function showRewards() {
    const bins = summary.reward.histogram;
    if (!bins.length) { put($("rewards-said"), "No rollout has a reward that is a number."); return; }
    const step = bins[0].high - bins[0].low, digits = step >= 1e-6 && step < 1e6 ? Math.max(0, 1 - Math.floor(Math.log10(step))) : null;
    const label = (bin) => bin.low === bin.high ? figure(bin.low) : `${digits == null ? figure(bin.low) : String(Number(bin.low.toFixed(digits)))}…`;
    bars("rewards", bins.map((bin) => bin.number), bins.map(label));
    $("rewards").setAttribute("aria-label", bins.map((bin) => `${figure(bin.low)} to ${figure(bin.high)}: ${bin.number}`).join("; "));
    put($("rewards-said"), `rollouts by their reward, ${figure(summary.reward.min)} to ${figure(summary.reward.max)}`);
  }

  // -- the other file ----------------------------------------------------------
  function showCompared(c) {
    if (!c) return;
    $("compared").hidden = false;
    put($("h-compared"), `Compared with ${c.file}`);
    const left = [[c.other_inputs, "inputs of the same number differ"], [c.only_first, "inputs are only here"], [c.only_second, "inputs are only there"], [c.unrewarded, "inputs have no reward here or there"]]
      .filter(([n]) => n).map(([n, words]) => `${whole(n)} ${words}`);
    put($("compared-said"), `The mean reward is ${figure(c.first.mean)} here, and ${figure(c.second.mean)} there. Differences are there minus here, input by input`
      + (left.length ? `; left out: ${left.join(", ")}.` : "."));
    put($("interval"), `${Math.round(c.confidence * 100)}% interval`, "n");
    rows($("means"), [{ name: "reward", ...c.rewards }, ...c.metrics], (each) => each.name, () => tableRow(7), (row, each) =>
      fillRow(row, [[each.name], [figure(each.mean), "n"], [each.low == null ? "–" : `${figure(each.low)} to ${figure(each.high)}`, "n"],
        ...[each.inputs, each.better, each.worse, each.same].map((n) => [whole(n), "n"])]));
    const differences = [...c.changed.map(([, first, second]) => second - first), ...new Array(c.rewards.same).fill(0)].sort((a, b) => a - b);
    if (differences.length) bars("differences", differences, []);
    $("differences").setAttribute("aria-label", `${c.rewards.better} inputs are better, ${c.rewards.worse} worse, ${c.rewards.same} the same`);
    document.querySelector("details").hidden = !c.changed.length;
    put($("changed-said"), `${whole(c.changed.length)} inputs that changed, most first`);
    growing($("changed"), $("changed-more"), () => c.changed, ([index, first, second]) => {
      const row = tableRow(4), button = document.createElement("button");
      button.type = "button";
      button.textContent = String(index);
      button.setAttribute("aria-label", `open input ${index}`);
      button.addEventListener("click", () => open(rollouts.find((one) => one.index === index)));
      row.firstChild.append(button);
      [first, second, second - first].forEach((n, at) => put(row.children[at + 1], figure(n), at === 2 && n < 0 ? "n bad" : "n"));
      return row;
    }).begin();
  }

  // -- a table that grows when its end is seen --------------------------------------
  function growing(body, button, listOf, make) {
    const grow = () => {
      const list = listOf(), from = body.children.length;
      body.append(...list.slice(from, from + MANY).map(make));
      button.hidden = body.children.length >= list.length;
    };
    button.addEventListener("click", grow);
    new IntersectionObserver((seen) => { if (seen.some((each) => each.isIntersecting) && !button.hidden) grow(); }, { rootMargin: "400px" }).observe(button);
    return { begin() { body.replaceChildren(); grow(); } };
  }

  // -- the timeline of the workers -------------------------------------------------
  let boxes = [];
  function lay() {
    const ran = rollouts.filter((one) => one.ended != null && one.seconds != null)
      .map((one) => ({ one, from: one.ended - one.seconds, to: one.ended })).sort((a, b) => a.from - b.from);
    const workers = new Map(), breaks = [];
    let shift = ran.length ? ran[0].from : 0, last = shift;
    for (const each of ran) {
      if (each.from > last + IDLE_S) { shift += each.from - last - GAP_S; breaks.push({ at: each.from - shift, shift, idle: each.from - last }); }
      last = Math.max(last, each.to);
      if (!workers.has(each.one.worker)) workers.set(each.one.worker, []);
      const lanes = workers.get(each.one.worker);
      let lane = lanes.findIndex((end) => end <= each.from + 0.0005);
      if (lane < 0) lane = lanes.push(0) - 1;
      lanes[lane] = each.to;
      Object.assign(each, { lane, x: each.from - shift, end: each.to - shift });
    }
    return { ran, workers, breaks, long: Math.max(last - shift, 0.001), began: ran.length ? ran[0].from : 0 };
  }
  const laid = lay();
  function drawTimeline() {
    const { ran, workers, breaks, long } = laid, canvas = $("timeline");
    boxes = [];
    canvas.hidden = !ran.length;
    if (!ran.length) { put($("workers-said"), "The results do not say when and where rollouts ran."); return; }
    const names = [...workers.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const lanes = names.reduce((sum, name) => sum + workers.get(name).length, 0);
    const high = Math.max(2, Math.min(14, Math.floor(360 / lanes)));
    const wide = Math.max($("timeline-room").clientWidth - 16, 240), scale = devicePixelRatio || 1;
    const tops = new Map();
    let top = 20;
    for (const name of names) { tops.set(name, top); top += Math.max(workers.get(name).length * high, 14) + 4; }
    canvas.width = wide * scale; canvas.height = top * scale;
    canvas.style.width = `${wide}px`; canvas.style.height = `${top}px`;
    const pen = canvas.getContext("2d"), span = wide - LABEL - 8, x = (at) => LABEL + at / long * span;
    pen.scale(scale, scale);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const [one, bad, quiet] = ["--one", "--bad", "--quiet"].map(css);
    pen.fillStyle = quiet;
    for (const name of names) pen.fillText(name || "not known", 0, tops.get(name) + 8, LABEL - 8);
    for (const each of ran) {
      const box = { one: each.one, left: x(each.x), top: tops.get(each.one.worker) + each.lane * high, high: Math.max(high - 1, 1) };
      box.wide = Math.max(x(each.end) - box.left - 0.5, 1);
      pen.fillStyle = each.one.error ? bad : one;
      pen.fillRect(box.left, box.top, box.wide, box.high);
      boxes.push(box);
    }
    const shiftAt = (at) => breaks.reduce((found, each) => each.at <= at ? each.shift : found, laid.began);
    pen.fillStyle = quiet;
    const marks = Math.max(1, Math.floor(span / 110));
    const digits = long / marks < 0.02 ? 3 : long / marks < 2 ? 1 : 0;
    for (let n = 0; n <= marks; n++) {
      const at = long * n / marks, text = clock(at + shiftAt(at), digits), size = pen.measureText(text).width;
      pen.fillText(text, Math.max(LABEL, Math.min(x(at) - size / 2, wide - size)), 8);
    }
    for (const each of breaks) pen.fillRect(x(each.at) - 1, 16, 2, top - 16);
    const errors = ran.filter((each) => each.one.error).length, missing = rollouts.length - ran.length;
    canvas.setAttribute("aria-label", `${ran.length} executions on ${names.length} workers in ${seconds(long)}`);
    put($("workers-said"), `${whole(ran.length)} executions on ${whole(names.length)} workers, by the caller's clock`
      + (errors ? `; ${whole(errors)} ended in errors (red)` : "") + (missing ? `; ${whole(missing)} rollouts without a time or an execution are not drawn` : "")
      + (breaks.length ? `; left out where nothing ran: ${breaks.map((each) => seconds(each.idle)).join(", ")}` : "") + ".");
  }
  function boxAt(event) {
    const place = $("timeline").getBoundingClientRect(), x = event.clientX - place.left, y = event.clientY - place.top;
    return boxes.find((box) => x >= box.left - 1 && x <= box.left + box.wide + 1 && y >= box.top && y <= box.top + box.high);
  }
  $("timeline").addEventListener("mousemove", (event) => {
    const box = boxAt(event);
    $("timeline").title = box ? `${nameOf(box.one)}: ${seconds(box.one.seconds)}, ${box.one.error || `reward ${figure(box.one.reward)}`}` : "";
  });
  $("timeline").addEventListener("click", (event) => { const box = boxAt(event); if (box) open(box.one); });

  // -- the table of rollouts ---------------------------------------------------
  const COLUMNS = [["index", "input", "n", 80], ["repeat", "repeat", "n", 80], ["reward", "reward", "n", 90], ["seconds", "ran", "n", 80],
    ["tokens", "tokens", "n", 90], ["worker", "worker", "", 100], ["input", "text", "", 0], ["error", "error", "", 0]];
  let order = { by: "index", down: false }, list = rollouts, matched = null, asked = 0;
  const rank = (value) => value == null || value === "" ? null : value;
  function sorted() {
    const sign = order.down ? -1 : 1;
    return rollouts.filter((one) => (!matched || matched.has(one.number)) && (!$("only-errors").checked || one.error)).sort((a, b) => {
      const x = rank(a[order.by]), y = rank(b[order.by]);
      if (x === null || y === null) return (x === null) - (y === null) || a.number - b.number;
      const numbers = typeof x === "number" && typeof y === "number";
      return sign * (numbers ? x - y : String(x).localeCompare(String(y), "en", { numeric: true })) || a.number - b.number;
    });
  }
  const table = growing($("rollouts").tBodies[0], $("more"), () => list, (one) => {
    const row = tableRow(COLUMNS.length), button = document.createElement("button");
    row.dataset.number = one.number;
    button.type = "button";
    button.textContent = String(one.index);
    button.setAttribute("aria-label", `open ${nameOf(one)}`);
    row.firstChild.append(button);
    row.firstChild.className = "n";
    [[String(one.repeat), "n"], [figure(one.reward), "n"], [seconds(one.seconds), "n"], [one.tokens == null ? "–" : count(one.tokens), "n"],
      [one.worker], [one.input], [one.error, "bad"]].forEach(([text, name], n) => put(row.children[n + 1], text, name));
    return row;
  });
  function showTable() {
    list = sorted();
    table.begin();
    for (const [n, [name]] of COLUMNS.entries()) {
      const head = $("rollouts").tHead.rows[0].cells[n];
      if (order.by === name) head.setAttribute("aria-sort", order.down ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
    }
    put($("found"), list.length === rollouts.length ? `${whole(list.length)} rollouts` : `${whole(list.length)} of ${whole(rollouts.length)} rollouts`);
  }
  function makeHeads() {
    for (const [name, words, kind, wide] of COLUMNS) {
      const head = document.createElement("th"), button = document.createElement("button");
      head.scope = "col"; head.className = kind;
      if (wide) head.style.width = `${wide}px`;
      button.type = "button"; button.textContent = words;
      button.addEventListener("click", () => { order = { by: name, down: order.by === name && !order.down }; showTable(); });
      head.append(button);
      $("rollouts").tHead.rows[0].append(head);
    }
  }
  $("rollouts").tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) open(rollouts[Number(row.dataset.number)]);
  });

  // -- search ------------------------------------------------------------------
  // The text of a rollout is parsed only if its JSON has the words.
  const escapes = { "<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029" };
  function has(one, words, written) {
    if ([one.input, one.error, one.worker].some((text) => text.toLowerCase().includes(words))) return true;
    if (!$(`d${one.number}`).textContent.toLowerCase().includes(written)) return false;
    return detailsOf(one).lines.some(([, , text]) => text.toLowerCase().includes(words));
  }
  async function search() {
    const words = $("query").value.trim().toLowerCase(), mine = ++asked;
    if (!words) { matched = null; showTable(); return; }
    const written = JSON.stringify(words).slice(1, -1).replace(/[<>&\u2028\u2029]/g, (one) => escapes[one]);
    const found = new Set();
    let until = performance.now() + SLICE_MS;
    for (const one of rollouts) {
      if (has(one, words, written)) found.add(one.number);
      if (performance.now() < until) continue;
      put($("found"), `searching: ${whole(one.number)} of ${whole(rollouts.length)}`);
      await new Promise((resolve) => setTimeout(resolve));
      if (mine !== asked) return;
      until = performance.now() + SLICE_MS;
    }
    matched = found;
    showTable();
  }
  let typed = 0;
  $("query").addEventListener("input", () => { asked++; clearTimeout(typed); typed = setTimeout(search, 150); });
  $("search").addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(typed); search(); });
  $("only-errors").addEventListener("change", showTable);

  // -- one rollout -------------------------------------------------------------
  const STYLES = new Set(["system", "user", "assistant", "tool", "error", "dim"]);
  let opened = null;
  function element(kind, text, name = "") { const made = document.createElement(kind); put(made, text, name); return made; }
  function textOf(lines) {
    const made = [];
    let said = null;
    for (const [style, names, text] of lines) {
      if (style === "title") { said = null; made.push(element("h3", text)); continue; }
      if (names && style !== "error") {
        said = element("div", "", `said ${STYLES.has(style) ? style : ""}`);
        said.append(element("b", text));
        made.push(said);
        continue;
      }
      const block = names ? element("h3", text, "bad") : element("pre", text, STYLES.has(style) ? style : "");
      if (said) said.append(block); else made.push(block);
    }
    return made;
  }
  function open(one) {
    if (!one) return;
    const found = detailsOf(one);
    opened = one;
    put($("one-name"), nameOf(one));
    $("one-cut").hidden = !found.left_out;
    put($("one-cut"), `cut at ${whole(data.cut)} characters: ${whole(found.left_out)} more are in ${data.file}, and in a report made with --whole`, "alarm");
    const at = one.ended == null ? null : new Date(one.ended * 1000).toLocaleString();
    const fields = [["reward", figure(one.reward)], ...found.metrics.map(([name, n]) => [`metric: ${name}`, figure(n)]), ...found.usage.filter(([, n]) => n).map(([name, n]) => [name, whole(n)]),
      ["worker", one.worker || "–"], ["ran, waited", `${seconds(one.seconds)}, ${seconds(one.waited)}`], ["executions", String(one.executions)], ...(at ? [["ended", at]] : [])];
    $("one-fields").replaceChildren(...fields.map((texts) => { const row = tableRow(2); fillRow(row, texts.map((text) => [text])); return row; }));
    $("one-text").replaceChildren(...textOf(found.lines));
    const place = list.indexOf(one);
    $("one-before").disabled = place <= 0;
    $("one-after").disabled = place < 0 || place + 1 >= list.length;
    if (!$("one").open) $("one").showModal();
    $("one").scrollTop = 0;
  }
  const step = (by) => { const place = list.indexOf(opened); if (place >= 0) open(list[place + by]); };
  $("one-before").addEventListener("click", () => step(-1));
  $("one-after").addEventListener("click", () => step(1));
  addEventListener("keydown", (event) => {
    if (!$("one").open || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft" || event.key === "p") step(-1);
    else if (event.key === "ArrowRight" || event.key === "n") step(1);
  });

  // -- all of it ---------------------------------------------------------------
  redraws.push(drawTimeline);
  const redraw = () => redraws.forEach((each) => each());
  let fitting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(fitting); fitting = requestAnimationFrame(redraw); });
  onTheme(redraw);
  showSummary(); showRewards(); showCompared(data.compared); drawTimeline(); makeHeads(); showTable();
  document.documentElement.dataset.ready = "yes";
})();
