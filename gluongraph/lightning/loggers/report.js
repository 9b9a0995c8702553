(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 6;
  const by = (id) => document.getElementById(id);

  // What was chosen is kept where the browser allows it, since the page loads itself anew.
  const state = { x: "step", log: [], logAll: false, smooth: 0, theme: null, reload: true, off: [], filter: "", scroll: 0 };
  const KEY = `gluongraph:${location.pathname}`;
  try { Object.assign(state, JSON.parse(sessionStorage.getItem(KEY) || "{}")); } catch { /* as at first */ }
  const keep = () => { try { sessionStorage.setItem(KEY, JSON.stringify(state)); } catch { /* it is forgotten */ } };

  function made(tag, parent, text, attributes) {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
    if (parent) parent.append(e);
    return e;
  }
  function drawn(tag, parent, attributes) {
    const e = document.createElementNS(SVG, tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    parent.append(e);
    return e;
  }

  // -- numbers as text

  function short(v) {
    if (v === null || v === undefined) return "–";
    if (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6)) return v.toExponential(3).replace(/\.?0+e/, "e");
    return String(Number(v.toPrecision(5)));
  }
  function duration(s) {
    if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
    const h = Math.floor(s / 3600), m = Math.floor((s % 3600) / 60);
    return h ? `${h} h ${m} min` : `${m} min ${Math.floor(s % 60)} s`;
  }
  const axisText = (v) => (state.x === "seconds" ? duration(v) : short(v));

  // -- which metrics are drawn together: those that differ by the stage or the interval only

  const STAGE = new Set(["train", "training", "val", "valid", "validation", "validate", "test"]);
  function groupOf(name) {
    const parts = name.replace(/_(step|epoch)(?=$|\/dataloader_idx_\d+$)/, "").split(/([_/.])/); // separators between
    let rest = "";
    for (let i = 0; i < parts.length; i += 2) {
      if (!STAGE.has(parts[i].toLowerCase())) rest += (rest ? parts[i - 1] : "") + parts[i];
    }
    return rest || name;
  }
  // Losses first, then other metrics of the model, then those of the machine.
  const rank = (key) => (/loss/i.test(key) ? 0 : /^lr-|^device\/|_per_sec|StatsMonitor/.test(key) ? 2 : 1);
  const groups = new Map();
  for (const name of Object.keys(data.series)) {
    const key = groupOf(name);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(name);
  }

  // -- curves

  // How many epochs are done at a step: within an epoch, its share by the steps that were logged.
  const ends = new Map();
  for (const s of Object.values(data.series)) s.epoch.forEach((e, k) => {
    if (e !== null) ends.set(e, Math.max(ends.get(e) ?? 0, s.step[k]));
  });
  const order = [...ends.keys()].sort((a, b) => a - b);
  const begins = new Map(order.map((e, i) => [e, i ? ends.get(order[i - 1]) : -1]));
  const done = (step, e) => {
    if (e === null) return null;
    const begin = begins.get(e), end = ends.get(e);
    return e + (end > begin ? (step - begin) / (end - begin) : 1);
  };
  for (const s of Object.values(data.series)) s.done = s.epoch.map((e, k) => done(s.step[k], e));

  const xs = (s) => {
    const found = state.x === "epoch" ? s.done : s[state.x];
    return found.some((v) => v !== null) ? found : s.step;
  };

  function smoothed(values, weight) {
    if (!weight) return values;
    let sum = 0, mass = 0; // corrected for the beginning, as Adam's averages are
    return values.map((v) => {
      if (v === null) return null;
      sum = weight * sum + (1 - weight) * v;
      mass = weight * mass + (1 - weight);
      return sum / mass;
    });
  }

  function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw) || power;
    const found = [];
    for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  }
  function decades(low, high) {
    if (high < 10 * low) return ticks(low, high, 4);
    const found = [], first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const factors = last - first > 3 ? [1] : last - first > 1 ? [1, 3] : [1, 2, 3, 5, 7];
    const every = Math.max(1, Math.ceil((last - first) / 6));
    for (let p = first; p <= last; p += every) for (const f of factors) {
      const v = f * 10 ** p;
      if (v >= low * 0.999 && v <= high * 1.001) found.push(Number(v.toPrecision(3)));
    }
    return found;
  }

  class Chart {
    constructor(key, names) {
      this.key = key; this.names = names;
      this.figure = made("figure", by("charts"), undefined, { "data-group": key });
      const caption = made("figcaption", this.figure);
      made("span", caption, key);
      this.button = made("button", caption, "log", { type: "button", title: "logarithmic scale", "aria-pressed": "false" });
      this.button.addEventListener("click", () => { flip(state.log, key); keep(); this.draw(); });
      this.svg = drawn("svg", this.figure, { role: "img", "aria-label": key });
      this.legend = made("ul", this.figure, undefined, { class: "legend" });
      this.tip = made("div", this.figure, undefined, { class: "tip" }); this.tip.hidden = true;
      this.svg.addEventListener("pointermove", (event) => this.point(event));
      this.svg.addEventListener("pointerleave", () => { this.tip.hidden = true; this.cross && this.cross.remove(); });
    }
    get isLog() { return state.logAll !== state.log.includes(this.key); }

    gather() {
      const log = this.isLog;
      return this.names.map((name, i) => ({ name, i, s: data.series[name] })).filter(({ name }) => !state.off.includes(name))
        .map((c) => {
          const y = smoothed(c.s.mean, state.smooth).map((v) => (log && !(v > 0) ? null : v));
          return { ...c, x: xs(c.s), y, low: log ? (c.s.low || []).map((v) => (v > 0 ? v : null)) : c.s.low, high: c.s.high };
        });
    }

    draw() {
      this.svg.replaceChildren();
      this.tip.hidden = true;
      this.button.setAttribute("aria-pressed", this.isLog);
      this.curves = this.gather();
      this.entries();
      const width = this.svg.clientWidth || 420, height = 240, left = 56, right = 10, top = 12, bottom = 24;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const all = this.curves.flatMap((c) => [...c.y, ...(c.low || []), ...(c.high || [])]).filter((v) => v !== null && v !== undefined);
      const at = this.curves.flatMap((c) => c.x.filter((v, k) => v !== null && c.y[k] !== null));
      if (!all.length || !at.length) {
        const text = drawn("text", this.svg, { x: width / 2, y: height / 2, "text-anchor": "middle" });
        text.textContent = this.isLog ? "no positive values" : "no values";
        return;
      }
      let [low, high] = extent(all), [first, last] = extent(at);
      if (first === last) { first -= 0.5; last += 0.5; }
      const f = this.isLog ? Math.log10 : (v) => v;
      if (low === high) { const by = this.isLog ? 0 : Math.abs(low) * 0.1 || 1; low = this.isLog ? low / 2 : low - by; high = this.isLog ? high * 2 : high + by; }
      const pad = (f(high) - f(low)) * 0.05, y0 = f(low) - pad, y1 = f(high) + pad;
      this.px = (v) => left + ((v - first) / (last - first)) * (width - left - right);
      const py = (v) => height - bottom - ((f(v) - y0) / (y1 - y0)) * (height - top - bottom);
      this.py = py;
      for (const v of this.isLog ? decades(low, high) : ticks(low - (high - low) * 0.05, high + (high - low) * 0.05, 5)) {
        drawn("line", this.svg, { class: "line", x1: left, x2: width - right, y1: py(v), y2: py(v) });
        drawn("text", this.svg, { x: left - 6, y: py(v) + 4, "text-anchor": "end" }).textContent = short(v);
      }
      for (const v of ticks(first, last, Math.max(2, Math.floor(width / 130)))) {
        drawn("text", this.svg, { x: this.px(v), y: height - 7, "text-anchor": "middle" }).textContent = axisText(v);
      }
      for (const c of this.curves) this.curve(c, top);
      this.box = { left, right: width - right, top, bottom: height - bottom };
    }

    curve(c, top) {
      const colour = `var(--c${c.i % COLOURS})`;
      if (c.low && c.low.length && !state.smooth) {
        const there = c.x.map((x, k) => k).filter((k) => c.x[k] !== null && c.low[k] !== null && c.high[k] !== null);
        const point = (k, v) => `${this.px(c.x[k]).toFixed(1)},${this.py(v).toFixed(1)}`;
        const line = [...there.map((k) => point(k, c.high[k])), ...there.reverse().map((k) => point(k, c.low[k]))];
        drawn("polygon", this.svg, { class: "band", points: line.join(" "), style: `fill:${colour}` });
      }
      let path = "", pen = false, points = 0;
      c.x.forEach((x, k) => {
        if (x === null || c.y[k] === null) { pen = false; return; }
        path += `${pen ? "L" : "M"}${this.px(x).toFixed(1)} ${this.py(c.y[k]).toFixed(1)}`;
        pen = true; points += 1;
      });
      drawn("path", this.svg, { class: "curve", d: path, style: `stroke:${colour}` });
      if (points < 30) c.x.forEach((x, k) => {
        if (x !== null && c.y[k] !== null) drawn("circle", this.svg, { cx: this.px(x), cy: this.py(c.y[k]), r: 2.6, style: `fill:${colour}` });
      });
      if (state.x === "step") for (const step of c.s.notFinite) {
        const x = this.px(step);
        if (Number.isFinite(x)) drawn("path", this.svg, { class: "bad", d: `M${x - 4} ${top - 8}h8l-4 7z` });
      }
    }

    entries() {
      this.legend.replaceChildren();
      this.names.forEach((name, i) => {
        const item = made("li", this.legend, undefined, { tabindex: "0", class: state.off.includes(name) ? "off" : "" });
        made("span", item, undefined, { class: "dot", style: `background:var(--c${i % COLOURS})` });
        item.append(`${name} `);
        const s = data.series[name];
        made("b", item, s.last === null ? "not finite" : short(s.last));
        if (s.bad) made("span", item, ` (${s.bad} not finite)`, { style: "color:var(--bad)" });
        const change = () => { flip(state.off, name); keep(); this.draw(); };
        item.addEventListener("click", change);
        item.addEventListener("keydown", (event) => { if (event.key === "Enter") change(); });
      });
    }

    point(event) {
      if (!this.box) return;
      const frame = this.svg.getBoundingClientRect();
      const at = ((event.clientX - frame.left) / frame.width) * this.svg.viewBox.baseVal.width;
      const rows = [];
      let nearest = null;
      for (const c of this.curves) {
        let best = -1, away = Infinity;
        c.x.forEach((x, k) => {
          if (x === null || c.y[k] === null) return;
          const d = Math.abs(this.px(x) - at);
          if (d <= away) { away = d; best = k; }
        });
        if (best < 0) continue;
        rows.push({ c, best, away });
        if (nearest === null || away < nearest.away) nearest = rows[rows.length - 1];
      }
      if (nearest === null) return;
      const x = this.px(nearest.c.x[nearest.best]);
      this.cross && this.cross.remove();
      this.cross = drawn("line", this.svg, { class: "cross", x1: x, x2: x, y1: this.box.top, y2: this.box.bottom });
      this.tip.replaceChildren();
      const s = nearest.c.s, k = nearest.best;
      const where = [`step ${s.step[k]}`, s.epoch[k] === null ? "" : `epoch ${short(s.epoch[k])}`, duration(s.seconds[k])];
      made("div", this.tip, where.filter(Boolean).join(" · "), { class: "soft" });
      for (const { c, best } of rows) {
        const row = made("div", this.tip);
        made("span", row, undefined, { class: "dot", style: `background:var(--c${c.i % COLOURS})` });
        const range = c.s.low ? ` (${short(c.s.low[best])} to ${short(c.s.high[best])})` : "";
        const exact = state.smooth ? `, smoothed ${short(c.y[best])}` : "";
        const other = c.s.step[best] === s.step[k] ? "" : ` at step ${c.s.step[best]}`;
        row.append(`${c.name} ${short(c.s.mean[best])}${range}${exact}${other}`);
      }
      this.tip.hidden = false;
      const px = (x / this.svg.viewBox.baseVal.width) * frame.width + frame.left - this.figure.getBoundingClientRect().left;
      const wide = this.tip.offsetWidth, right = px + 14 + wide <= this.figure.clientWidth; // else left of the line
      this.tip.style.left = `${Math.max(4, right ? px + 14 : px - 14 - wide)}px`;
      this.tip.style.top = `${this.figure.querySelector("figcaption").offsetHeight + 18}px`;
    }
  }

  function extent(values) {
    let low = Infinity, high = -Infinity;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    return [low, high];
  }
  function flip(list, value) {
    const at = list.indexOf(value);
    if (at < 0) list.push(value); else list.splice(at, 1);
  }

  // -- the page

  by("title").textContent = data.title;
  const lastStep = Math.max(-1, ...Object.values(data.series).map((s) => s.step[s.step.length - 1] ?? -1));
  const lastEpoch = Math.max(-1, ...Object.values(data.series).map((s) => s.epoch[s.epoch.length - 1] ?? -1));
  function card(name, value, more) {
    const box = made("div", by("cards"));
    made("dt", box, name);
    const dd = made("dd", box, value);
    if (more) made("small", dd, more);
  }
  card("status", data.status);
  card("time", duration(data.seconds), new Date(data.began * 1000).toLocaleString());
  if (lastStep >= 0) card("last step", String(lastStep), lastEpoch >= 0 ? `epoch ${short(lastEpoch)}` : "");
  if (data.best.name) card("best checkpoint", data.best.score ?? "saved", data.best.monitor ? `${data.best.monitor}, ${data.best.name}` : data.best.name);

  const ordered = [...groups].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b, undefined, { numeric: true }));
  const charts = ordered.map(([key, names]) => new Chart(key, names));
  const draw = () => {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    for (const chart of charts) {
      const text = [chart.key, ...chart.names].join(" ").toLowerCase();
      chart.figure.hidden = !words.every((word) => text.includes(word));
      if (!chart.figure.hidden) chart.draw();
    }
  };
  if (!charts.length) made("p", by("charts"), "Nothing has been logged yet.", { class: "soft" });

  const values = by("values").querySelector("tbody");
  for (const [name, s] of Object.entries(data.series)) {
    const row = made("tr", values);
    made("th", row, name);
    const e = s.extremes;
    for (const v of [s.last, e[0], e[1], e[2], e[3], s.count]) made("td", row, short(v), { class: "n" });
  }
  by("values").hidden = !charts.length;
  const table = by("hparams").querySelector("tbody");
  for (const [name, value] of Object.entries(data.hparams)) {
    const row = made("tr", table);
    made("th", row, name);
    made("td", row, value);
  }
  by("hparams").hidden = !table.rows.length;
  by("footer").textContent = "Written by gluongraph. A click on a name hides its curve.";

  const axis = [...by("axis").querySelectorAll("button")];
  const press = () => {
    for (const b of axis) b.setAttribute("aria-pressed", b.dataset.x === state.x);
    by("log").setAttribute("aria-pressed", state.logAll);
    by("smooth").value = state.smooth;
    by("smoothed").textContent = state.smooth ? Number(state.smooth).toFixed(2) : "off";
    by("filter").value = state.filter;
    const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    by("theme").textContent = dark ? "light" : "dark";
    keep();
  };
  for (const b of axis) b.addEventListener("click", () => { state.x = b.dataset.x; press(); draw(); });
  by("log").addEventListener("click", () => { state.logAll = !state.logAll; state.log = []; press(); draw(); });
  by("smooth").addEventListener("input", () => { state.smooth = Number(by("smooth").value); press(); draw(); });
  by("filter").addEventListener("input", () => { state.filter = by("filter").value; press(); draw(); });
  by("theme").addEventListener("click", () => { state.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; press(); });
  press();
  draw();
  let before = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== before) { before = innerWidth; draw(); } });

  by("again").hidden = data.status !== "running";
  by("reload").checked = state.reload;
  by("reload").addEventListener("change", () => { state.reload = by("reload").checked; keep(); });
  if (data.status === "running") {
    scrollTo(0, state.scroll);
    setInterval(() => { if (state.reload) { state.scroll = scrollY; keep(); location.reload(); } }, data.reload * 1000);
  }
})();
