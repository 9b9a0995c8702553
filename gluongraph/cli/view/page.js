"use strict";
// Selects a launch or a buffer wherever it is shown, tells about it, and sorts and filters the table of kernels.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const detail = document.getElementById("detail");
  const places = new Map(data.places.map((place) => [place.name, place]));
  const made = (tag, text, parent) => {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    if (parent) parent.append(e);
    return e;
  };

  function mark(attribute, value) {
    document.querySelectorAll(".sel").forEach((e) => e.classList.remove("sel"));
    document.querySelectorAll(`[${attribute}]`).forEach((e) => {
      if (e.getAttribute(attribute) === String(value)) e.classList.add("sel");
    });
  }

  function links(parent, title, entries) {
    const line = made("p", title + " ", parent);
    if (!entries.length) line.append("–");
    for (const [text, act] of entries) {
      if (!act) {
        line.append(text + " ");
        continue;
      }
      const button = made("button", text, line);
      button.className = "to";
      button.type = "button";
      button.addEventListener("click", act);
    }
  }

  function open(title) {
    detail.replaceChildren();
    detail.hidden = false;
    const close = made("button", "✕", detail);
    close.className = "close";
    close.setAttribute("aria-label", "close");
    close.addEventListener("click", shut);
    made("h3", title, detail);
  }

  function shut() {
    detail.hidden = true;
    mark("data-i", "");
  }

  const named = (i) => [`${i} ${data.steps[i].label}`, () => launch(i)];
  const held = (name) => (places.has(name) ? [[name, () => buffer(name)]] : [[name]]);

  function launch(i) {
    const step = data.steps[i];
    mark("data-i", i);
    open(`${i} ${step.kernel}: ${step.label}`);
    made("p", [step.phase, step.layer, step.place, `pattern ${step.pattern}, rule ${step.rule}`].filter(Boolean).join(" · "), detail);
    let told = `${(step.nbytes / 1e6).toPrecision(3)} MB, ${(step.flops / 1e6).toPrecision(3)} MFLOP`;
    if (step.seconds) told = `${(step.seconds * 1e6).toPrecision(4)} us, ` + told;
    if (step.bound) told += `; ${Math.round(step.share * 100)}% of the roofline, ${(step.lost * 1e6).toPrecision(3)} us lost to ${step.limit}`;
    made("p", told, detail);
    links(detail, "reads what these made:", step.before.map(named));
    links(detail, "is read by:", step.after.map(named));
    links(detail, "reads", step.reads.flatMap(held));
    links(detail, "writes", step.writes.flatMap(held));
    made("pre", data.bodies[step.kernel], detail);
  }

  function buffer(name) {
    const place = places.get(name);
    mark("data-b", name);
    open(`${name}: ${place.type}`);
    const told = [place.layer, place.kind, `${place.nbytes} bytes at 0x${place.offset.toString(16)}`];
    made("p", told.filter(Boolean).join(" · "), detail);
    made("p", `needed from launch ${place.first} to ${place.last}`, detail);
    const steps = data.steps.filter((step) => step.number >= place.first && step.number <= place.last);
    links(detail, "written by:", steps.filter((s) => s.writes.includes(name)).map((s) => named(s.number)));
    links(detail, "read by:", steps.filter((s) => s.reads.includes(name)).map((s) => named(s.number)));
  }

  function choose(target) {
    const e = target.closest("[data-i], [data-b]");
    if (!e) return false;
    if (e.hasAttribute("data-b")) buffer(e.getAttribute("data-b"));
    else launch(Number(e.getAttribute("data-i")));
    return true;
  }

  document.querySelector("main").addEventListener("click", (event) => choose(event.target));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") shut();
    if (event.key === "Enter" && event.target.matches("tr[tabindex]")) choose(event.target);
  });

  // The lines of the box that is pointed at.
  document.querySelectorAll("svg.graph").forEach((graph) => {
    graph.addEventListener("pointerover", (event) => {
      const box = event.target.closest("[data-box]");
      graph.querySelectorAll(".wire").forEach((wire) => {
        wire.classList.toggle("lit", box !== null && wire.dataset.ends.split(" ").includes(box.dataset.box));
      });
    });
  });

  const table = document.getElementById("launches");
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const numbers = head.classList.contains("n");
      const was = head.getAttribute("aria-sort");
      const up = was ? was === "descending" : !numbers; // numbers: the largest first
      table.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.v;
      const order = (a, b) => (numbers ? value(a) - value(b) : value(a).localeCompare(value(b), undefined, { numeric: true }));
      body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
    });
  });

  const filter = document.getElementById("filter");
  const shown = document.getElementById("shown");
  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    let seconds = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (row.hidden) continue;
      count += 1;
      seconds += data.steps[Number(row.dataset.i)].seconds;
    }
    shown.textContent = `${count} launches` + (seconds ? `, ${(seconds * 1e6).toPrecision(4)} us` : "");
  }
  filter.addEventListener("input", sift);
  sift();
})();
