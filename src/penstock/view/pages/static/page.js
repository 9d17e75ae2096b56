// What pages do beside showing: keys, themes, plots drawn from the tables beside them, lists and scans that go on.
// Nothing here makes markup of text: what the data hold comes as text from the server, and stays text.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const one = (query, within = document) => within.querySelector(query);

  // --- themes ---
  const themes = ["", "light", "dark"];
  const kept = () => { try { return localStorage.getItem("penstock-theme") || ""; } catch { return ""; } };
  const show = (theme) => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    all(".plot").forEach(draw);
  };
  const turn = () => {
    const next = themes[(themes.indexOf(kept()) + 1) % themes.length];
    try { localStorage.setItem("penstock-theme", next); } catch { /* kept for this page alone */ }
    show(next);
  };
  if (kept()) root.dataset.theme = kept();

  // --- plots ---
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const short = (value) => {
    const size = Math.abs(value);
    for (const [least, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]])
      if (size >= least) return `${+(value / least).toPrecision(3)}${unit}`;
    return `${+value.toPrecision(3)}`;
  };
  const columns = (plot) => {
    const rows = all("tbody tr", plot).map((row) => all("[data-v]", row).map((cell) => Number(cell.dataset.v)));
    return rows.length ? rows[0].map((_, at) => rows.map((row) => row[at])) : [];
  };
  const drawn = new Map();
  function draw(plot) {
    const place = one(".canvas", plot);
    const data = columns(plot);
    if (!place || !data.length || typeof uPlot === "undefined") return;
    drawn.get(plot)?.destroy();
    place.replaceChildren();
    const kind = plot.dataset.plot;
    const [text, grid, quiet] = ["--text", "--line", "--quiet"].map(colour);
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: quiet, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 }, font, size: 30 };
    const names = all("thead th", plot).slice(1).map((cell) => cell.textContent.trim());
    const percent = plot.dataset.y === "share";
    const value = (_, raw) => raw == null ? "–" : percent ? `${(100 * raw).toFixed(2)} %` : raw.toLocaleString("en");
    const yAxis = { ...axis, size: 58, values: (_, marks) => marks.map((mark) => mark == null ? "" : percent ? `${+(100 * mark).toPrecision(3)} %` : short(mark)) };
    let options, table;
    if (kind === "lines") {
      table = data;
      const series = names.map((name, at) => ({
        label: name, stroke: colour(`--c${at % 8 + 1}`), width: 2, value, dash: at % 2 ? [7, 4] : undefined, points: { show: false },
      }));
      options = { series: [{ label: plot.dataset.x, value: (_, raw) => raw == null ? "–" : raw.toLocaleString("en") }, ...series],
        scales: { x: { time: false }, y: { range: (_, low, high) => percent ? [0, Math.min(1, Math.max(0.05, high * 1.12))] : [0, high || 1] } },
        axes: [{ ...axis, values: (_, marks) => marks.map(short) }, yAxis], hooks: { drawAxes: [marks(plot, quiet)] } };
    } else {
      const counts = kind === "bars" ? data[2] : data[3];
      const labels = data[0].map((from, at) => from === data[1][at] ? short(from) : `${short(from)}–${short(data[1][at])}`);
      const beneath = kind === "bars" ? data[0].map(short) : labels;
      table = [counts.map((_, at) => at), counts];
      const fewest = kind === "shards" ? data[2] : null;
      const fill = colour("--c1");
      options = { series: [{ label: plot.dataset.x, value: (_, raw) => raw == null ? "–" : labels[raw] },
        { label: plot.dataset.y, stroke: fill, fill, width: 0, value: fewest ? (_, raw, __, at) => raw == null ? "–" : at != null && fewest[at] !== raw ? `${fewest[at].toLocaleString("en")} to ${raw.toLocaleString("en")}` : raw.toLocaleString("en") : value,
          paths: uPlot.paths.bars({ size: [kind === "bars" ? 0.86 : 0.8, 64], align: 0, radius: 0.08 }), points: { show: false } }],
        scales: { x: { time: false, range: [-0.6, counts.length - 0.4] }, y: { range: (_, __, high) => [0, (high || 1) * 1.05] } },
        axes: [{ ...axis, grid: { show: false }, space: 62, incrs: [1, 2, 4, 8, 16, 32, 64, 128], values: (_, marks) => marks.map((mark) => Number.isInteger(mark) ? beneath[mark] ?? "" : "") }, yAxis] };
    }
    const made = new uPlot({ width: Math.max(220, place.clientWidth), height: place.clientHeight, ...options,
      legend: { live: true, isolate: false }, cursor: { drag: { x: kind === "lines", y: false }, y: false, points: { size: 7 } } }, table, place);
    place.style.height = "auto";
    drawn.set(plot, made);
    void text;
    const details = one("details", plot);
    if (details && !plot.dataset.drawn) details.open = false;
    plot.dataset.drawn = "1";
  }
  const marks = (plot, stroke) => (made) => {
    const at = all("[data-mark]", plot).map((mark) => Number(mark.dataset.mark));
    const { ctx, bbox } = made;
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.setLineDash([3, 3]);
    for (const step of at) {
      const x = made.valToPos(step, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };
  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => drawn.forEach((made, plot) => made.setSize({ width: Math.max(220, one(".canvas", plot).clientWidth), height: made.height })), 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all(".plot").forEach(draw));

  // --- keys ---
  const items = () => all("[data-item]");
  let chosen = -1;
  const choose = (at) => {
    const list = items();
    if (!list.length) return false;
    list[chosen]?.classList.remove("on");
    chosen = Math.min(list.length - 1, Math.max(0, at));
    list[chosen].classList.add("on");
    list[chosen].scrollIntoView({ block: "nearest" });
    if (at >= list.length - 1) one("[data-more]")?.dispatchEvent(new Event("more"));
    return true;
  };
  const follow = (key) => { const found = one(`[data-key="${key}"]`); if (found?.href) { found.click(); return true; } return false; };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.("input, select, textarea");
    if (typing) {
      if (event.key === "Escape") typing.blur();
      if (typing.type !== "range" && typing.type !== "radio") return;
      if (!["j", "k", "g", "?", "t"].includes(event.key)) return;
    }
    const actions = {
      j: () => follow("j") || choose(chosen + 1),
      k: () => follow("k") || choose(chosen - 1),
      g: () => { const found = all('input[data-key="g"]').at(-1); found?.focus(); found?.select(); return Boolean(found); },
      "/": () => { const found = one('input[data-key="/"]'); found?.focus(); return Boolean(found); },
      "[": () => follow("["),
      "]": () => follow("]"),
      t: () => (turn(), true),
      "?": () => (one("#help").showModal(), true),
      Enter: () => { const open = items()[chosen] && one("[data-open][href]", items()[chosen]); open?.click(); return Boolean(open); },
    };
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const tab = /^[1-9]$/.test(event.key) && all(".tabs a")[Number(event.key) - 1];
    if (tab ? (tab.click(), true) : actions[event.key]?.()) event.preventDefault();
  });

  // --- lists that go on, and scans ---
  const MOST_ROWS = 600;
  function prepare(within) {
    for (const later of all("[data-more]", within)) {
      const more = () => {
        if (later.dataset.asked) return;
        later.dataset.asked = "1";
        later.classList.add("busy");
        htmx.ajax("GET", later.dataset.more, { target: later, swap: "outerHTML" }).then(trim);
      };
      later.addEventListener("more", more);
      new IntersectionObserver((seen, watch) => { if (seen.some((entry) => entry.isIntersecting)) { watch.disconnect(); more(); } }, { rootMargin: "600px" }).observe(later);
    }
    for (const scan of all("[data-scan]", within)) {
      const stop = one("[data-stop]", scan);
      const on = one("[data-on]", scan);
      stop.hidden = false;
      on.hidden = true;
      const timer = setTimeout(() => htmx.ajax("GET", scan.dataset.scan, { target: scan, swap: "outerHTML" }), 30);
      stop.addEventListener("click", () => { clearTimeout(timer); scan.dataset.stopped = "1"; stop.hidden = true; on.hidden = false; });
    }
    for (const far of all("[data-far]", within)) setTimeout(() => htmx.ajax("GET", far.dataset.far, { target: far, swap: "outerHTML" }), 1500);
    all(".plot", within).forEach(draw);
  }
  document.addEventListener("htmx:beforeSwap", (event) => { if (event.detail.target?.dataset?.stopped) event.detail.shouldSwap = false; });
  document.addEventListener("htmx:afterSettle", (event) => prepare(event.detail.elt.parentElement ?? document));
  function trim() {
    const list = items();
    if (list.length <= MOST_ROWS) return;
    const before = document.documentElement.scrollHeight;
    const gone = list.slice(0, list.length - MOST_ROWS);
    if (chosen >= 0) chosen = Math.max(-1, chosen - gone.length);
    const top = window.scrollY;
    gone.forEach((item) => { const parent = item.parentElement; item.remove(); if (!parent.children.length) (parent.closest(".run") ?? parent).remove(); });
    window.scrollTo(0, top - (before - document.documentElement.scrollHeight));
  }

  // --- tables: sort the rows that are shown ---
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-sort]");
    if (!button) return;
    const cell = button.closest("th"), head = [...cell.parentElement.children], at = head.indexOf(cell);
    const body = one("tbody", cell.closest("table")), falls = cell.getAttribute("aria-sort") === "ascending";
    head.forEach((other) => other.removeAttribute("aria-sort"));
    cell.setAttribute("aria-sort", falls ? "descending" : "ascending");
    const value = (row) => {
      const text = row.children[at]?.textContent.trim() ?? "", number = Number(text.replaceAll(",", ""));
      return text !== "" && Number.isFinite(number) ? number : text;
    };
    const order = (a, b) => typeof a !== typeof b ? (typeof a === "number" ? -1 : 1) : a < b ? -1 : a > b ? 1 : 0;
    body.append(...[...body.rows].sort((a, b) => order(value(a), value(b)) * (falls ? -1 : 1)));
  });

  // --- the rail ---
  for (const rail of all("[data-rail]")) {
    const output = one("output", rail.form);
    rail.addEventListener("input", () => {
      const at = Number(rail.value), most = Number(rail.max);
      output.textContent = rail.dataset.bytes === undefined ? at.toLocaleString("en") : `${(100 * at / (most || 1)).toFixed(1)} %`;
    });
    rail.addEventListener("change", () => rail.form.requestSubmit());
  }

  // --- find ---
  for (const form of all("[data-find]")) {
    const what = one("#what", form);
    const update = () => {
      const by = one('input[name="by"]:checked', form).value;
      what.name = by;
      all("[data-for]", form).forEach((hint) => hint.classList.toggle("on", hint.dataset.for === by));
    };
    all('input[name="by"]', form).forEach((radio) => radio.addEventListener("change", update));
    update();
  }

  for (const late of all("[data-again]")) setTimeout(() => location.reload(), Number(late.dataset.again));
  for (const button of all("[data-theme-button]")) { button.hidden = false; button.addEventListener("click", turn); }
  for (const button of all("[data-help-button]")) { button.hidden = false; button.addEventListener("click", () => one("#help").showModal()); }
  one(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  prepare(document);
  const here = location.hash && document.getElementById(location.hash.slice(1));
  if (here) choose(items().indexOf(here));
})();
