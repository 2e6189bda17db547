// The live page.  All text of others goes through textContent: nothing here makes HTML of it.
(() => {
  const { $, put, rows, tableRow, fillRow, seconds, count, css, onTheme } = parts;
  const HOUR = 3600, WINDOW = 30;
  let token = sessionStorage.getItem("token") || "";
  let view = null, shown = null, before = [];

  // -- words -------------------------------------------------------------------
  const bytes = (n) => n < 1e6 ? `${(n / 1024).toFixed(0)} KiB` : `${(n / 1048576).toFixed(0)} MiB`;
  const nameOf = (row) => row.key == null ? row.request
    : row.namespace === "default" ? row.key : `${row.key}  (${row.namespace})`;
  const noteOf = (row) => Object.entries(row.note).filter(([k]) => k !== "waits").map(([k, v]) => `${k}=${v}`).join(" ");

  // -- charts ------------------------------------------------------------------
  const clock = (at_s) => new Date(at_s * 1000).toTimeString().slice(0, 8);
  function chart(id, names) {
    const place = $(id), data = [[], ...names.map(() => [])];
    const axis = { stroke: () => css("--quiet"), grid: { stroke: () => css("--line"), width: 1 },
      ticks: { stroke: () => css("--line"), width: 1 } };
    const colours = ["--one", "--two", "--bad"];
    const plot = new uPlot({
      width: Math.max(place.clientWidth, 200), height: 150, legend: { show: false },
      scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, space: 70, values: (u, times) => times.map(clock) }, { ...axis, size: 44 }],
      series: [{}, ...names.map((name, n) => ({ label: name, stroke: () => css(colours[n]), width: 1.5, points: { show: false } }))],
    }, data, place);
    return {
      add(at, values) {
        [at, ...values].forEach((value, n) => {
          data[n].push(value);
          if (data[n].length > HOUR) data[n].shift();
        });
        plot.setData(data);
      },
      fit() { plot.setSize({ width: Math.max(place.clientWidth, 200), height: 150 }); },
      length: () => data[0].length,
    };
  }
  const charts = {
    rates: chart("rates", ["finished", "failed"]), queue: chart("queue", ["waiting", "running"]),
    latency: chart("latency", ["p50", "p99", "wait p99"]),
  };
  const fitAll = () => Object.values(charts).forEach((each) => each.fit());
  // Not only a resize of the window: a scrollbar that appears makes the charts too wide.
  let fitting = 0;
  new ResizeObserver(() => { cancelAnimationFrame(fitting); fitting = requestAnimationFrame(fitAll); }).observe($("rates"));

  const failed = (v) => Object.values(v.failures).reduce((sum, each) => sum + each, 0);

  function draw(v) {
    if (before.length && before[0].epoch !== v.epoch) before = [];
    const last = before[before.length - 1];
    const took = last ? Math.max(v.at_s - last.at_s, 0.1) : 0;
    const rate = (f) => last ? Math.max(0, f(v) - f(last)) / took : null;
    charts.rates.add(v.at_s, [rate((x) => x.counts.completed), rate(failed)]);
    charts.queue.add(v.at_s, [v.waiting, v.running]);
    charts.latency.add(v.at_s, [v.latency.p50, v.latency.p99, v.latency.wait_p99]);
    before.push({ at_s: v.at_s, epoch: v.epoch, counts: v.counts, failures: v.failures });
    if (before.length > WINDOW) before.shift();
  }

  // -- what there is to see ----------------------------------------------------
  function showBounds(v) {
    const tiles = ["waiting", "running", "kept", "kept_bytes", "held_bytes", "sessions", "keys"];
    const texts = { kept: "outcomes kept", kept_bytes: "bytes of kept outcomes", held_bytes: "inputs held", sessions: "clients" };
    rows($("bounds"), tiles, (name) => name, () => {
      const tile = document.createElement("div");
      tile.className = "tile";
      tile.append(document.createElement("span"), document.createElement("b"),
        document.createElement("meter"), document.createElement("span"));
      return tile;
    }, (tile, name) => {
      const [label, number, meter, bound] = tile.children, most = v.bounds[name];
      const words = name.endsWith("_bytes") ? bytes : count;
      put(label, texts[name] || name);
      put(number, words(v[name]));
      meter.max = most || 1; meter.value = v[name]; meter.high = (most || 1) * 0.8;
      meter.setAttribute("aria-label", `${texts[name] || name} against its bound`);
      put(bound, most ? `of ${words(most)}` : "");
    });
  }
  function showSlow(v) {
    put($("h-slow"), v.total ? `Slowest rollouts: ${v.slow.length} of ${v.total} that run; the p50 is ${seconds(v.typical_s)}` : "Slowest rollouts: nothing runs");
    $("slow-part").hidden = !v.total;
    rows($("slow"), v.slow, (row) => `${v.epoch}/${row.number}`, () => {
      const row = tableRow(5), button = document.createElement("button");
      button.type = "button";
      button.addEventListener("click", () => open(Number(row.dataset.key.split("/")[1])));
      row.children[0].append(button);
      return row;
    }, (row, each) => {
      put(row.children[0].firstChild, nameOf(each));
      const late = v.typical_s && each.age_s > 10 * v.typical_s;
      put(row.children[1], seconds(each.age_s), late ? "n bad" : "n");
      put(row.children[2], each.worker);
      put(row.children[3], each.state === "running" ? String(each.executions) : each.state, "n");
      put(row.children[4], [noteOf(each), each.line, each.where && "[its worker's loop is blocked]"].filter(Boolean).join("  "));
    });
  }
  // Its tables are those of `top`: the server sends their words.
  function tableSection(each) {
    const place = document.createElement("section"), title = document.createElement("h2");
    const wide = document.createElement("div"), table = document.createElement("table");
    const head = table.createTHead().insertRow(), body = table.createTBody();
    title.id = `h-${each.field}`;
    place.setAttribute("aria-labelledby", title.id);
    wide.className = "wide"; wide.tabIndex = 0;
    wide.setAttribute("role", "group"); wide.setAttribute("aria-labelledby", title.id);
    each.columns.forEach((words, n) => {
      const cell = document.createElement("th");
      put(cell, words, each.left.includes(n) ? "" : "n");
      head.append(cell);
    });
    body.id = each.field;
    wide.append(table);
    place.append(title, wide);
    return place;
  }
  function headingOf(v, each) {
    const title = each.title[0].toUpperCase() + each.title.slice(1), more = each.more ? `; ${each.more} are not shown` : "";
    if (each.field !== "per_worker") return title + more;
    const range = v.workers_least < v.workers_most ? ` (of ${v.workers_least}..${v.workers_most}${v.resized && "; " + v.resized})` : "";
    return `${title}: ${v.ready} of ${v.workers} ready${range}${more}`;
  }
  function showTables(v) {
    rows($("tables"), v.tables, (each) => each.field, tableSection, (place, each) => {
      const bad = new Set(each.bad.map(String));
      put(place.firstChild, headingOf(v, each));
      rows($(each.field), each.rows.map((cells, number) => ({ cells, number })), (row) => row.number,
        () => tableRow(each.columns.length), (row, { cells, number }) => fillRow(row, cells.map((text, n) =>
          [text, [each.left.includes(n) ? "" : "n", bad.has(`${number},${n}`) ? "bad" : ""].filter(Boolean).join(" ")])));
    });
  }
  function showFailures(v) {
    const besides = [["model calls failed", v.model_failed], ["refused for now", v.counts.refused_for_now],
      ["cancelled by callers", v.counts.cancelled]];
    const ways = [...Object.entries(v.failures), ...besides];
    rows($("failures"), ways, ([name]) => name, () => tableRow(2), (row, [name, number]) =>
      fillRow(row, [[name], [count(number), "n"]]));
  }
  function alarm(text) { $("alarm").hidden = !text; if ($("alarm").textContent !== text) $("alarm").textContent = text; }

  function show(v) {
    $("token").hidden = !v.tokens;
    if (v.why) { put($("status"), "silent", "pill bad"); alarm(v.why); return; }
    view = v;
    const well = v.status === "ready" && !v.paused && !v.journal;
    put($("status"), v.paused ? "paused" : v.closing ? `stopping: ${v.closing}` : v.status, well ? "pill good" : "pill bad");
    put($("about"), `${v.environment} at ${v.address}, epoch ${v.epoch}`);
    document.title = `${v.paused ? "paused" : v.status} · ${v.running} run · ${v.environment}`;
    const full = v.journal && `The journal cannot save: ${v.journal}`;
    alarm(v.paused ? `Nothing is dispatched: ${v.paused}` : full || v.reason);
    showBounds(v); draw(v); showSlow(v); showTables(v); showFailures(v);
    if ($("one").open) fields();
  }

  // -- one rollout -------------------------------------------------------------
  function open(number) {
    shown = view.slow.find((row) => row.number === number) || shown;
    if (!shown) return;
    $("one-stack").hidden = true;
    $("one-said").textContent = "";
    fields();
    $("one").showModal();
  }
  function fields() {
    const row = view.slow.find((each) => each.number === shown.number);
    if (row) shown = row; else $("one-said").textContent = "it is not among the slowest any more, or has ended";
    put($("one-name"), nameOf(shown));
    $("one-cancel").hidden = !(token && shown.key != null);
    const list = [["request", shown.request], ["client", shown.client || "(the work of a key)"], ["worker", shown.worker],
      ["age", seconds(shown.age_s)], ["state", shown.state], ...Object.entries(shown.note).map(([k, v]) => [`note: ${k}`, String(v)]),
      ...(shown.line ? [["stands at", shown.line]] : []), ...(shown.where ? [["blocked at", shown.where]] : [])];
    rows($("one-fields"), list, ([name]) => name, () => tableRow(2), (row, [name, text]) => fillRow(row, [[name], [text]]));
  }
  async function ask(path, options = {}) {
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    const found = await answer.json();
    if (!answer.ok) throw new Error(`${found.title}: ${found.detail}`);
    return found;
  }
  $("one-look").addEventListener("click", async () => {
    $("one-said").textContent = "asking its worker";
    try {
      const found = await ask(`v1/stack?number=${shown.number}`);
      $("one-said").textContent = found.stack == null ? "it does not run any more" : "";
      $("one-stack").textContent = found.stack || "";
      $("one-stack").hidden = !found.stack;
    } catch (error) { $("one-said").textContent = error.message; }
  });
  $("one-cancel").addEventListener("click", async () => {
    const place = `v1/rollouts/${encodeURIComponent(shown.key)}?namespace=${encodeURIComponent(shown.namespace)}`;
    try {
      const found = await ask(place, { method: "DELETE" });
      $("one-said").textContent = found.known ? "it is cancelled" : "nothing is known under its key";
    } catch (error) { $("one-said").textContent = error.message; }
  });

  // -- token and theme ---------------------------------------------------------
  $("token").addEventListener("click", () => $("ask").showModal());
  $("ask").addEventListener("close", () => {
    if ($("ask-token").value) { token = $("ask-token").value.trim(); sessionStorage.setItem("token", token); }
    $("ask-token").value = "";
    again();
  });
  onTheme(fitAll);

  // -- the events --------------------------------------------------------------
  // By fetch, since EventSource sends no token.
  let stream = null, timer = 0;
  function again(after = 0) { clearTimeout(timer); if (stream) stream.abort(); timer = setTimeout(listen, after); }
  async function listen() {
    const mine = stream = new AbortController();
    let wait = 2000;
    try {
      const headers = token ? { authorization: `Bearer ${token}` } : {};
      const answer = await fetch("v1/events", { headers, signal: mine.signal, cache: "no-store" });
      if (answer.status === 401) {
        put($("status"), "a token is needed", "pill bad");
        $("token").hidden = false;
        if (!$("ask").open) $("ask").showModal();
        return;
      }
      if (!answer.ok) throw new Error(`${answer.status}: ${(await answer.json()).detail}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        rest += value;
        const ends = rest.lastIndexOf("\n\n");
        if (ends < 0) continue;
        const events = rest.slice(0, ends).split("\n\n");
        rest = rest.slice(ends + 2);
        const data = events[events.length - 1].split("\n").find((line) => line.startsWith("data: "));
        if (data) show(JSON.parse(data.slice(6)));
      }
      alarm("The server has ended the connection; asking again.");
    } catch (error) {
      if (mine.signal.aborted) return;
      alarm(`Not connected: ${error.message}; asking again.`);
      wait = 5000;
    }
    put($("status"), "not connected", "pill bad");
    if (mine === stream) timer = setTimeout(listen, wait);
  }
  globalThis.livePage = { points: () => charts.queue.length(), show };  // for tests
  listen();
})();
