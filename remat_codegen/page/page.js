"use strict";
/* Draws what the page's data say. All numbers come from there: here they are only written out, and stacked where categories are
   drawn upon each other. Times are in nanoseconds, sizes in bytes. */
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const { nodes, runs, values, planned, unmodified, measured, figures, outside, tradeoff, texts } = page;
  const $ = id => document.getElementById(id);
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const FATES = { kept: "kept", rebuilt: "rebuilt", passing: "forward pass only", gradient: "gradient", output: "output" };
  const GUTTER = 62; // of both charts over the step, so that their axes stand in line

  // ------------------------------------------------------------------ words and numbers

  function bytes(n) {
    for (const [unit, size, digits] of [["GiB", 2 ** 30, 2], ["MiB", 2 ** 20, 1], ["KiB", 2 ** 10, 1]])
      if (Math.abs(n) / size >= 1 - 0.05 / 1024) return `${(n / size).toFixed(digits)} ${unit}`;
    return `${n} bytes`;
  }
  function time(ns) {
    return ns >= 1e9 ? `${(ns / 1e9).toFixed(2)} s` : ns >= 1e6 ? `${(ns / 1e6).toFixed(1)} ms` : `${(ns / 1e3).toFixed(1)} µs`;
  }
  const percent = x => `${(100 * x).toFixed(1)} %`;

  function element(tag, given = {}, ...inside) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) name in made ? (made[name] = value) : made.setAttribute(name, value);
    made.append(...inside);
    return made;
  }

  function legend(id, entries) {
    $(id).replaceChildren(...entries.map(([name, shade, kind]) => {
      const sign = element("i", { className: kind || "" });
      sign.style[kind === "area" ? "background" : "borderColor"] = colour(shade);
      return element("li", {}, sign, name);
    }));
  }

  /* Ticks at round numbers of a unit: sizes in powers of two, times in powers of ten. */
  function ticks(min, max, wanted, binary) {
    const unit = binary ? 1024 ** Math.max(0, Math.floor(Math.log(Math.max(1, max)) / Math.log(1024))) : 1;
    const rough = Math.max((max - min) / wanted / unit, 1e-9), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough) * unit;
    const found = [];
    for (let at = Math.ceil(min / step) * step; at <= max + step * 1e-6; at += step) found.push(at);
    return found;
  }
  function shortly(splits, unit, name) {
    const step = splits.length > 1 ? (splits[1] - splits[0]) / unit : 1;
    const digits = Math.max(0, Math.min(3, -Math.floor(Math.log10(step) + 1e-9)));
    return splits.map(v => `${(v / unit).toFixed(digits)} ${name}`);
  }
  function sizes(splits) {
    const top = Math.max(1, ...splits), power = Math.max(0, Math.min(3, Math.floor(Math.log(top) / Math.log(1024) + 1e-9)));
    return shortly(splits, 1024 ** power, ["B", "KiB", "MiB", "GiB"][power]).map((t, i) => (splits[i] ? t : "0"));
  }
  function times(splits) {
    const top = Math.max(...splits.map(Math.abs));
    const [unit, name] = top >= 1e9 ? [1e9, "s"] : top >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
    return shortly(splits, unit, name).map((t, i) => (splits[i] ? t : "0"));
  }
  const axis = given => ({
    stroke: colour("soft"), font: "12px system-ui, sans-serif", ticks: { show: false },
    grid: { stroke: colour("grid"), width: 1 }, ...given,
  });
  const across = (label, binary, words) =>
    axis({ size: 30, splits: (u, i, min, max) => ticks(min, max, Math.max(2, Math.floor(u.width / 130)), binary), values: (u, s) => words(s) });

  /* The index of the last of `starts` that is not behind `at`. */
  function last(starts, at) {
    let low = 0, high = starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      starts[middle] <= at ? (low = middle) : (high = middle - 1);
    }
    return low;
  }

  // ------------------------------------------------------------------ the curve of the step

  const END = Math.max(planned.end_ns, unmodified.end_ns);
  let curve = null, lives = null, chosen = -1, shown = [], rowHeight = 1;

  const closed = (starts, held, end) => [[...starts, end], [...held, held[held.length - 1]]];

  function parts() {
    const also = $("outside").querySelector("input").checked;
    const constant = also ? [
      ["parameters and buffers", "parameters", outside.parameters_bytes + outside.buffers_bytes],
      ["their gradients", "leaves", outside.gradients_bytes],
      ["optimizer state", "optimizer", outside.optimizer_bytes[$("optimizer").querySelector("select").value]],
    ] : [];
    return [
      ...constant.filter(c => c[2]).map(([name, shade, size]) => [name, shade, planned.nodes.map(() => size)]),
      ["activations", "activations", planned.activations_bytes],
      ["gradients of activations", "gradients", planned.gradients_bytes],
      ["workspace", "workspace", planned.workspace_bytes],
    ];
  }

  function stacked() {
    const found = parts(), below = planned.nodes.map(() => 0), series = [], tables = [];
    for (const [name, shade, held] of found) {
      held.forEach((b, i) => (below[i] += b));
      tables.push(closed(planned.start_ns, [...below], planned.end_ns)[1]);
      series.push({ label: name, fill: colour(shade), stroke: colour(shade), width: 0, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } });
    }
    legend("curve-legend", [...found.map(([name, shade]) => [name, shade, "area"]), ...budgeted()]);
    // What is drawn first lies behind: the highest sum is.
    return { data: [[...planned.start_ns, planned.end_ns], ...tables.reverse()], series: series.reverse() };
  }

  const budgeted = () => (figures.budget_bytes === null ? [] : [["budget", "limit", "dash"]]);

  function totals() {
    const stepped = uPlot.paths.stepped({ align: 1 });
    const line = (label, shade, more) => ({ label, stroke: colour(shade), width: 1.5, points: { show: false }, paths: stepped, ...more });
    const tables = [closed(unmodified.start_ns, unmodified.total_bytes, unmodified.end_ns), closed(planned.start_ns, planned.total_bytes, planned.end_ns)];
    const series = [line("unmodified", "unmodified", { width: 1.25 }), line("planned", "planned", { fill: colour("planned") + "1c" })];
    if (measured && measured.at_ns.length) {
      tables.push([measured.at_ns, measured.held_bytes]);
      series.push(line("measured", "measured", { width: 1 }));
    }
    legend("curve-legend", [...series.map(s => [s.label, s.label, ""]).reverse(), ...budgeted()]);
    return { data: uPlot.join(tables), series };
  }

  function drawStep(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    const loss = planned.start_ns[planned.nodes.findIndex(n => nodes[n].phase === "loss")];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.lineWidth = ratio;
    const x = Math.round(u.valToPos(loss, "x", true));
    ctx.strokeStyle = ctx.fillStyle = colour("soft");
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    ctx.beginPath(); ctx.moveTo(x, bbox.top - 14 * ratio); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = "right"; ctx.fillText("forward", x - 6 * ratio, bbox.top - 5 * ratio);
    ctx.textAlign = "left"; ctx.fillText("backward", x + 6 * ratio, bbox.top - 5 * ratio);
    const budget = figures.budget_bytes === null ? null : figures.budget_bytes + base();
    if (budget !== null) {
      const y = Math.round(u.valToPos(budget, "y", true));
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.strokeStyle = colour("limit"); ctx.lineWidth = 1.25 * ratio;
      ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke();
    }
    ctx.restore();
  }

  /* What stands below the bytes that the budget counts. */
  function base() {
    if (mode() !== "parts" || !$("outside").querySelector("input").checked) return 0;
    const state = outside.optimizer_bytes[$("optimizer").querySelector("select").value];
    return outside.parameters_bytes + outside.buffers_bytes + outside.gradients_bytes + state;
  }

  const mode = () => document.querySelector("[name=mode]:checked").value;

  function readout(at) {
    if (at === null || at > planned.end_ns) return ($("curve-readout").textContent = "Drag to look closer, double click for the whole step.");
    const i = last(planned.start_ns, at), node = nodes[planned.nodes[i]];
    const phase = runs[i].again ? " again" : node.phase === "forward" ? " forward" : "";
    const said = [element("b", {}, node.name), `${phase}${node.module ? " in " + node.module : ""} · planned `, element("b", {}, bytes(planned.total_bytes[i]))];
    if (mode() === "parts") said.push(` · activations ${bytes(planned.activations_bytes[i])} · gradients ${bytes(planned.gradients_bytes[i])} · workspace ${bytes(planned.workspace_bytes[i])}`);
    else {
      if (at <= unmodified.end_ns) said.push(` · unmodified ${bytes(unmodified.total_bytes[last(unmodified.start_ns, at)])}`);
      if (measured && measured.at_ns.length) said.push(` · measured ${bytes(measured.held_bytes[last(measured.at_ns, at)])}`);
    }
    $("curve-readout").replaceChildren(`${time(at)} · `, ...said);
  }

  const cursor = { y: false, drag: { x: true, y: false, setScale: true }, points: { show: false }, sync: { key: "step", scales: ["x", null] } };
  let following = false;
  function follow(u, key) {
    if (key !== "x" || following) return;
    following = true;
    for (const other of [curve, lives])
      if (other && other !== u && (other.scales.x.min !== u.scales.x.min || other.scales.x.max !== u.scales.x.max))
        other.setScale("x", { min: u.scales.x.min, max: u.scales.x.max });
    following = false;
    $("whole").hidden = u.scales.x.min <= 0 && u.scales.x.max >= END;
  }
  const wholeStep = (u, min, max) => [min === null ? 0 : min, max === null ? END : max];

  function drawCurve() {
    const kept = curve && { min: curve.scales.x.min, max: curve.scales.x.max };
    if (curve) curve.destroy();
    const { data, series } = mode() === "parts" ? stacked() : totals();
    curve = new uPlot({
      width: $("curve").clientWidth, height: innerWidth < 560 ? 260 : 340, legend: { show: false }, cursor, padding: [24, 8, 0, 0],
      scales: { x: { time: false, range: (u, min, max) => [Math.max(0, min), Math.min(END, max)] }, y: { range: (u, min, max) => [0, 1.04 * Math.max(max, (figures.budget_bytes || 0) + base())] } },
      axes: [across("time", false, times), axis({ size: GUTTER, splits: (u, i, min, max) => ticks(min, max, 5, true), values: (u, s) => sizes(s) })],
      series: [{}, ...series],
      hooks: { draw: [drawStep], setScale: [follow], setCursor: [u => readout(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null)] },
    }, data, $("curve"));
    if (kept && kept.min !== null) curve.setScale("x", kept);
    readout(null);
  }

  // ------------------------------------------------------------------ values over their lives

  const start = run => runs[run].start_ns, end = run => runs[run].end_ns;

  function choose() {
    const fate = $("fate").value, block = $("block").value, wanted = $("find").value.trim().toLowerCase();
    shown = values.map((v, i) => i).filter(i => {
      const v = values[i], node = nodes[v.node];
      return (!fate || v.fate === fate) && (block === "" || node.block === +block) &&
        (!wanted || v.name.toLowerCase().includes(wanted) || node.module.toLowerCase().includes(wanted));
    });
    if ($("order").value === "size") shown.sort((a, b) => values[b].nbytes - values[a].nbytes || a - b);
  }

  const FITTING = 150; // values up to which each has a row that can be read
  function layOut() {
    const height = $("lives-scroll").clientHeight - 30;
    rowHeight = shown.length > FITTING ? height / shown.length : Math.max(15, Math.min(24, height / Math.max(1, shown.length)));
    $("lives-tall").style.height = `${Math.max(height, rowHeight * shown.length) + 30}px`;
    $("lives-scroll").scrollTop = 0;
    const total = shown.reduce((sum, i) => sum + values[i].nbytes, 0);
    $("lives-readout").textContent = `${shown.length} of ${values.length} values, ${bytes(total)} together.` + (shown.length > FITTING ? " Choose a block or a kind to see their names." : "");
    lives.redraw();
  }

  function bar(u, ctx, y, high, first, after) {
    const left = u.valToPos(start(first), "x", true), right = u.valToPos(after, "x", true);
    ctx.fillRect(left, y, Math.max(devicePixelRatio, right - left), high);
  }

  function drawLives(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio, top = $("lives-scroll").scrollTop;
    const from = Math.max(0, Math.floor(top / rowHeight)), rows = Math.ceil(u.height / rowHeight) + 1;
    const shades = Object.fromEntries(Object.keys(FATES).map(f => [f, colour(f)])), soft = colour("soft"), ink = colour("ink"), paper = colour("paper");
    const named = rowHeight >= 11, high = Math.max(ratio, (named ? rowHeight - 3 : Math.max(0.8, rowHeight - (rowHeight > 4 ? 1 : 0))) * ratio);
    ctx.save();
    ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
    ctx.font = `${11 * ratio}px ui-monospace, Menlo, Consolas, monospace`;
    ctx.textBaseline = "middle";
    for (let row = from; row < Math.min(shown.length, from + rows); row++) {
      const value = values[shown[row]], y = bbox.top + (row * rowHeight - top + (named ? 1 : 0)) * ratio, middle = y + high / 2;
      if (shown[row] === chosen) {
        ctx.fillStyle = colour("mark");
        ctx.fillRect(bbox.left, y - 2 * ratio, bbox.width, high + 4 * ratio);
      }
      ctx.fillStyle = shades[value.fate];
      for (let i = 0; i < value.lives.length; i++) {
        bar(u, ctx, y, high, value.lives[i][0], end(value.lives[i][1]));
        if (i && rowHeight > 3) {
          const a = u.valToPos(end(value.lives[i - 1][1]), "x", true), b = u.valToPos(start(value.lives[i][0]), "x", true);
          ctx.globalAlpha = 0.5;
          ctx.fillRect(a, middle - ratio / 2, Math.max(0, b - a), ratio);
          ctx.globalAlpha = 1;
        }
      }
      if (named) label(u, ctx, value, middle, ink, paper, ratio);
    }
    ctx.restore();
  }

  /* Behind a value's last bar, or before its first one where there is no room; else on it. */
  function label(u, ctx, value, y, ink, paper, ratio) {
    const words = value.name, wide = ctx.measureText(words).width + 8 * ratio, edge = u.bbox.left + u.bbox.width;
    const right = u.valToPos(end(value.lives[value.lives.length - 1][1]), "x", true), left = u.valToPos(start(value.lives[0][0]), "x", true);
    const on = right + wide >= edge && left - wide <= u.bbox.left;
    ctx.textAlign = right + wide < edge ? "left" : on ? "left" : "right";
    const x = right + wide < edge ? Math.max(right, u.bbox.left) + 5 * ratio : on ? Math.max(left, u.bbox.left) + 5 * ratio : left - 5 * ratio;
    if (on && value.lives.length > 1) {
      ctx.fillStyle = paper; ctx.globalAlpha = 0.85;
      ctx.fillRect(x - 3 * ratio, y - 7 * ratio, wide - 2 * ratio, 14 * ratio);
      ctx.globalAlpha = 1;
    }
    ctx.fillStyle = on && value.lives.length === 1 && value.fate !== "passing" ? paper : ink;
    ctx.fillText(words, x, y + ratio / 2);
  }

  function makeLives() {
    if (lives) lives.destroy();
    lives = new uPlot({
      width: $("lives").clientWidth, height: $("lives-scroll").clientHeight, legend: { show: false }, padding: [0, 8, 0, 0],
      cursor,
      scales: { x: { time: false, range: (u, min, max) => [Math.max(0, min), Math.min(END, max)] }, y: { range: [0, 1] } },
      axes: [across("time", false, times), axis({ size: GUTTER, grid: { show: false }, splits: () => [] })],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { draw: [drawLives], setScale: [follow] },
    }, [[0, END], [0, 0]], $("lives"));
    if (curve && curve.scales.x.min !== null) lives.setScale("x", { min: curve.scales.x.min, max: curve.scales.x.max });
    let down = null;
    lives.over.addEventListener("mousedown", event => (down = event.clientX));
    lives.over.addEventListener("click", event => {
      if (down !== null && Math.abs(event.clientX - down) > 4) return;
      select(at(event));
    });
    choose();
    layOut();
  }

  function at(event) {
    const y = event.clientY - lives.over.getBoundingClientRect().top + $("lives-scroll").scrollTop;
    return shown[Math.max(0, Math.min(shown.length - 1, Math.floor(y / rowHeight)))] ?? -1;
  }

  // ------------------------------------------------------------------ one value

  const phaseOf = run => (runs[run].again ? "again" : nodes[runs[run].node].phase);

  function link(words, place, own) {
    const made = element("a", { href: "#source" }, words);
    if (place) { made.dataset.text = place.text; made.dataset.line = place.line; }
    if (own) made.dataset.own = own;
    return made;
  }

  function select(index) {
    chosen = index;
    if (index >= 0) detail(values[index]);
    lives.redraw();
  }

  function detail(value) {
    const node = nodes[value.node], rows = [];
    const row = (name, ...inside) => rows.push(element("dt", {}, name), element("dd", {}, ...inside));
    row("size", bytes(value.nbytes));
    const shapes = [...new Set(value.tensors.map(t => `${t.dtype}[${t.shape.join(", ")}]`))];
    if (shapes.length) row("shape", shapes[0], shapes.length > 1 ? ` and ${shapes.length - 1} ${shapes.length > 2 ? "views" : "view"} of it` : "");
    row("made by", element("code", {}, node.operation), node.also.length ? ` after ${node.also.join(", ")}` : "", node.module ? ` in ${node.module}` : "");
    if (node.place) {
      const text = texts[node.place.text], place = element("dd", {}, link(`${text.name}:${node.place.line}`, node.place, runs[value.lives[0][0]].line));
      place.append(element("pre", {}, text.lines[node.place.line - 1].trim()));
      rows.push(element("dt", {}, "line"), place);
    }
    const made = value.lives.map(([run]) => runs[run]).filter(run => run.line);
    if (made.length) {
      const links = made.flatMap((run, i) => [i ? ", " : "", link(`line ${run.line}`, node.place, run.line), run.again ? " again" : ""]);
      row("in the file", ...links);
    }
    row(value.lives.length > 1 ? "copies" : "alive", ...value.lives.flatMap(([a, b], i) => [i ? element("br") : "", `${time(start(a))} – ${time(end(b))}, ${phaseOf(a)}${phaseOf(a) === phaseOf(b) ? "" : " to " + phaseOf(b)}`]));
    const readers = [...new Set(value.reads.map(run => nodes[runs[run].node].name + (runs[run].again ? " (again)" : "")))];
    row("read by", readers.length ? readers.slice(0, 8).join(", ") + (readers.length > 8 ? ` and ${readers.length - 8} more` : "") : "nobody");
    const sign = element("i");
    sign.style.background = colour(value.fate);
    $("detail").replaceChildren(
      element("h3", {}, value.name), element("p", { className: "fate" }, sign, FATES[value.fate]),
      element("dl", {}, ...rows), element("div", { className: "why" }, ...value.why.map(why => element("p", {}, why))));
  }

  // ------------------------------------------------------------------ overhead against budget

  let chart = null;
  function drawTradeoff() {
    if (!tradeoff) return;
    if (chart) chart.destroy();
    const { points, own, others } = tradeoff, dashed = { dash: [5, 4] };
    const x = points.map(p => p.budget_bytes), all = [...x, ...others.map(p => p.budget_bytes)];
    const reached = points.filter(p => p.overhead !== null), low = Math.min(...all), high = Math.max(...all);
    const worth = Math.max(0, ...reached.map(p => p.bound ?? 0)), most = Math.max(own.overhead, ...reached.map(p => p.overhead));
    const files = Math.max(own.overhead, ...others.map(p => p.overhead));
    const top = 1.25 * Math.max(0.01, files, Math.min(most, 3 * worth + 0.2));
    const soft = colour("unmodified");
    chart = new uPlot({
      width: $("tradeoff").clientWidth, height: innerWidth < 560 ? 250 : 320, legend: { show: false }, padding: [10, 16, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [low - 0.04 * (high - low), high + 0.02 * (high - low)] }, y: { range: [0, top] } },
      axes: [across("budget", true, sizes), axis({ size: GUTTER, splits: (u, i, min, max) => ticks(min, max, 5, false), values: (u, s) => s.map(v => `${+(100 * v).toFixed(1)} %`) })],
      series: [
        {},
        { label: "bound", stroke: soft, width: 1, fill: soft + "38", paths: uPlot.paths.stepped({ align: -1 }), points: { show: false } },
        { label: "plans", stroke: colour("planned"), width: 1.5, ...dashed, paths: uPlot.paths.stepped({ align: 1 }), points: { show: true, size: 6, stroke: colour("planned"), fill: colour("paper") } },
      ],
      hooks: { draw: [u => drawImpossible(u), ...others.map(p => u => drawOwn(u, p, true)), u => drawOwn(u, own, false)] },
    }, [x, points.map(p => p.bound), points.map(p => p.overhead)], $("tradeoff"));
    legend("budget-legend", [["this file", "measured", "dot"], [`best plan found by ${tradeoff.planners.join(", ")}`, "planned", "dash"], ["proved impossible", "unmodified", "area"]]);
  }

  function drawImpossible(u) {
    const { ctx } = u, edge = Math.max(u.bbox.left, Math.min(u.bbox.left + u.bbox.width, u.valToPos(tradeoff.least_bytes, "x", true)));
    ctx.save();
    ctx.fillStyle = colour("unmodified") + "38";
    ctx.fillRect(u.bbox.left, u.bbox.top, edge - u.bbox.left, u.bbox.height);
    ctx.restore();
  }

  /* A plan of the file: as a disc the one that the page shows, as a ring one for another budget. */
  function drawOwn(u, own, isOther) {
    const { ctx } = u, ratio = devicePixelRatio, x = u.valToPos(own.budget_bytes, "x", true), y = u.valToPos(own.overhead, "y", true);
    ctx.save();
    ctx.fillStyle = colour(isOther ? "paper" : "measured"); ctx.strokeStyle = colour(isOther ? "measured" : "paper"); ctx.lineWidth = 2 * ratio;
    ctx.beginPath(); ctx.arc(x, y, (isOther ? 5 : 6) * ratio, 0, 2 * Math.PI); ctx.fill(); ctx.stroke();
    ctx.fillStyle = colour("ink"); ctx.font = `${12 * ratio}px system-ui, sans-serif`; ctx.textAlign = "left"; ctx.textBaseline = "bottom";
    ctx.fillText(percent(own.overhead), x + 9 * ratio, y - 4 * ratio);
    ctx.restore();
  }

  // ------------------------------------------------------------------ texts and tables

  function fill(box, text) {
    box.replaceChildren(...text.lines.map((line, i) => element("div", { "data-n": i + 1 }, line || " ")));
  }
  function show(box, line) {
    for (const old of box.querySelectorAll(".on")) old.classList.remove("on");
    const found = box.children[line - 1];
    if (!found) return;
    found.classList.add("on");
    box.scrollTop = found.offsetTop - box.offsetTop - box.clientHeight / 3;
  }
  function showText(number) {
    if ($("text").value === String(number) && $("theirs").children.length) return;
    $("text").value = number;
    fill($("theirs"), texts[number]);
  }

  document.addEventListener("click", event => {
    const to = event.target.closest("a[data-text], a[data-own]");
    if (!to) return;
    if (to.dataset.text === "0") return show($("own"), +to.dataset.line);
    if (to.dataset.own) show($("own"), +to.dataset.own);
    if (to.dataset.text) { showText(+to.dataset.text); show($("theirs"), +to.dataset.line); }
  });

  function toggles() {
    const rows = [...document.querySelectorAll(".tree tbody tr")], inside = rows.map(() => []);
    for (const row of rows) if (row.dataset.parent) inside[+row.dataset.parent].push(row);
    const close = row => inside[+row.dataset.row].forEach(one => { one.hidden = true; const b = one.querySelector("button"); if (b) sign(b, false); close(one); });
    const sign = (button, open) => { button.textContent = open ? "▾" : "▸"; button.setAttribute("aria-expanded", open); };
    rows.forEach((row, i) => {
      if (!inside[i].length) return;
      const button = element("button", { type: "button", "aria-label": "what is inside" });
      sign(button, !inside[i][0].hidden);
      button.addEventListener("click", () => {
        const open = inside[i][0].hidden;
        open ? inside[i].forEach(one => (one.hidden = false)) : close(row);
        sign(button, open);
      });
      row.querySelector("th").prepend(button);
    });
  }

  // ------------------------------------------------------------------ all together

  function redraw() {
    drawCurve();
    makeLives();
    drawTradeoff();
    legend("lives-legend", Object.entries(FATES).filter(([fate]) => values.some(v => v.fate === fate)).map(([fate, name]) => [name, fate, "area"]));
    if (chosen >= 0) detail(values[chosen]);
  }

  for (const name of Object.keys(outside.optimizer_bytes)) $("optimizer").querySelector("select").append(element("option", { value: name }, name));
  for (const block of page.blocks) $("block").append(element("option", { value: block.block }, `block ${block.block}${block.path ? " · " + block.path : ""}`));
  texts.forEach((text, i) => i && $("text").append(element("option", { value: i }, text.name)));
  fill($("own"), texts[0]);
  if (texts.length > 1) showText(1);
  $("detail").append(element("p", { className: "empty" }, "Click a bar to see what it is, who reads it, and why it is kept or rebuilt."));

  $("curve-mode").addEventListener("change", () => {
    $("outside").hidden = mode() !== "parts";
    $("optimizer").hidden = mode() !== "parts" || !$("outside").querySelector("input").checked;
    drawCurve();
  });
  $("outside").addEventListener("change", () => { $("optimizer").hidden = !$("outside").querySelector("input").checked; drawCurve(); });
  $("optimizer").addEventListener("change", drawCurve);
  $("whole").addEventListener("click", () => curve.setScale("x", { min: 0, max: END }));
  for (const id of ["fate", "block", "order", "find"]) $(id).addEventListener("input", () => { choose(); layOut(); });
  $("lives-scroll").addEventListener("scroll", () => lives.redraw());
  $("lives-scroll").addEventListener("keydown", event => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!way || !shown.length) return;
    event.preventDefault();
    const row = Math.max(0, Math.min(shown.length - 1, shown.indexOf(chosen) + way));
    const box = $("lives-scroll"), y = row * rowHeight;
    if (y < box.scrollTop || y > box.scrollTop + box.clientHeight - 60) box.scrollTop = y - box.clientHeight / 2;
    select(shown[row]);
  });
  $("metric").addEventListener("change", event => (document.querySelector(".tree").className = `tree metric-${event.target.value}`));
  $("text").addEventListener("change", () => { fill($("theirs"), texts[+$("text").value]); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
  toggles();
  redraw();
  document.documentElement.dataset.ready = "yes";
})();
