"use strict";
// Without this program the page shows everything; it adds filters, keys and buttons.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const form = document.getElementById("filters");
  const search = form.elements.text;
  const boxes = all("input[type=checkbox]", form);
  const rows = all("#matrix tr[data-clause]");
  const details = new Map(all("details[data-clause]").map((one) => [one.dataset.clause, one]));
  const texts = new Map();
  const names = new Set(rows.map((row) => row.dataset.clause.toLowerCase()));
  let place = "";

  const textOf = (element) => {
    if (!texts.has(element)) texts.set(element, element.textContent.toLowerCase());
    return texts.get(element);
  };
  const chosen = (name) => new Set(boxes.filter((box) => box.name === name && box.checked).map((box) => box.value));
  const within = (set, value) => set.size === 0 || set.has(value);

  // The hash holds the filters and the place, as #backend=torch&state=failed&text=G1&at=G1.torch; a plain #G1.torch is a place.
  function read() {
    const hash = location.hash.slice(1);
    const plain = !hash.includes("=");
    const parameters = new URLSearchParams(plain ? "" : hash);
    for (const box of boxes) box.checked = (parameters.get(box.name) || "").split(",").includes(box.value);
    search.value = parameters.get("text") || "";
    try {
      place = plain ? decodeURIComponent(hash) : parameters.get("at") || "";
    } catch {
      place = "";
    }
  }

  function write(push) {
    const parts = [];
    for (const name of ["backend", "state"]) {
      const values = [...chosen(name)];
      if (values.length) parts.push(`${name}=${values.map(encodeURIComponent).join(",")}`);
    }
    if (search.value.trim()) parts.push(`text=${encodeURIComponent(search.value.trim())}`);
    if (place) parts.push(parts.length ? `at=${encodeURIComponent(place)}` : encodeURIComponent(place));
    const hash = parts.length ? `#${parts.join("&")}` : location.pathname + location.search;
    history[push ? "pushState" : "replaceState"](null, "", hash);
  }

  function apply() {
    const backends = chosen("backend");
    const states = chosen("state");
    const words = search.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const exact = words.length > 0 && words.every((word) => names.has(word));
    const matches = (...elements) => words.every((word) => elements.some((one) => one && textOf(one).includes(word)));

    for (const one of all("[data-backend]:not([data-entry])")) one.hidden = !within(backends, one.dataset.backend);
    let clauses = 0;
    let cells = 0;
    for (const row of rows) {
      const name = row.dataset.clause;
      const detail = details.get(name);
      const named = exact ? words.includes(name.toLowerCase()) : matches(row, detail);
      const fitting = all("td", row).filter((cell) => !cell.hidden && within(states, cell.dataset.state));
      row.hidden = detail.hidden = !named || fitting.length === 0;
      if (!row.hidden) {
        clauses += 1;
        cells += fitting.length;
      }
      for (const cell of all("details.cell", detail)) {
        cell.hidden = !within(backends, cell.dataset.backend) || !within(states, cell.dataset.state);
      }
    }
    for (const body of all("#matrix tbody")) body.hidden = all("tr[data-clause]", body).every((row) => row.hidden);
    for (const entry of all("#failures [data-entry], #reasons [data-entry]")) {
      const links = all('a[href^="#"]', entry).map((link) => link.textContent.toLowerCase());
      const named = exact ? words.some((word) => links.includes(word)) : matches(entry);
      entry.hidden = !within(backends, entry.dataset.backend) || !within(states, entry.dataset.state) || !named;
    }
    for (const list of all("#failures .list")) list.hidden ||= all("[data-entry]", list).every((entry) => entry.hidden);
    if (backends.size + states.size + words.length) {
      for (const more of all("#failures .more")) more.open ||= all("[data-entry]", more).some((entry) => !entry.hidden);
    }
    const left = (id, selector) => all(`#${id} ${selector}`).filter((one) => !one.hidden).length;
    for (const [id, number] of [
      ["clauses", clauses],
      ["cells", clauses],
      ["failures", left("failures", "[data-entry]") + left("failures", ":scope > p[data-backend]")],
      ["reasons", left("reasons", "[data-entry]")],
    ]) {
      const nothing = document.querySelector(`#${id} .nothing`);
      if (nothing) nothing.hidden = number > 0;
    }
    const active = backends.size + states.size + words.length > 0;
    document.getElementById("clear").hidden = !active;
    document.getElementById("shown").textContent = active ? `${clauses} of ${rows.length} clauses, ${cells} cells` : "";
  }

  // What encloses the place is opened; the focus goes to the summary, so that the keyboard goes on from there.
  function go() {
    const target = place && document.getElementById(place);
    if (!target) return;
    for (let one = target; one; one = one.parentElement) if (one instanceof HTMLDetailsElement) one.open = true;
    const summary = target.parentElement instanceof HTMLDetailsElement && target.parentElement.querySelector("summary");
    const goal = summary || target;
    goal.scrollIntoView({ block: "start" });
    if (!goal.matches("a, button, input, summary, [tabindex]")) goal.tabIndex = -1;
    goal.focus({ preventScroll: true });
  }

  form.hidden = false;
  for (const button of all("button[hidden].copy, .tools")) button.hidden = false;
  form.addEventListener("input", () => {
    write(false);
    apply();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    for (const box of boxes) box.checked = false;
    search.value = "";
    write(false);
    apply();
    search.focus();
  });
  addEventListener("hashchange", () => {
    read();
    apply();
    go();
  });
  addEventListener("popstate", () => {
    read();
    apply();
  });

  document.addEventListener("click", async (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      place = decodeURIComponent(link.hash.slice(1));
      write(true);
      go();
      return;
    }
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.open || button.dataset.close) {
      const section = document.getElementById(button.dataset.open || button.dataset.close);
      for (const one of all("details[data-clause], details.cell", section)) one.open = Boolean(button.dataset.open) && !one.closest("[hidden]");
    }
    if (button.classList.contains("copy")) {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected: press Ctrl+C";
      }
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && event.target !== search) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape" && event.target === search && search.value) {
      event.preventDefault();
      search.value = "";
      write(false);
      apply();
    } else if (event.key.startsWith("Arrow") && event.target.closest("#matrix")) {
      step(event);
    }
  });

  // The arrow keys move between the links of the matrix.
  function step(event) {
    const here = event.target.closest("td, th");
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    const lines = rows.filter((row) => !row.hidden);
    const columns = (row) => [...row.cells].filter((cell) => !cell.hidden);
    let y = lines.indexOf(here.parentElement);
    if (y < 0) return;
    let x = columns(lines[y]).indexOf(here);
    for (;;) {
      y += down;
      x += right;
      const cell = lines[y] && columns(lines[y])[x];
      if (!cell) return;
      const link = cell.querySelector("a");
      if (link) {
        event.preventDefault();
        link.focus();
        return;
      }
    }
  }

  read();
  apply();
  // After the page is loaded the browser goes to the place by itself, and this goes on from there.
  addEventListener("load", () => setTimeout(go));
})();
