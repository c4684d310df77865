"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  document.documentElement.classList.add("with-script");

  // The legend shows and hides series. A series is shown if both its side and its name are switched on.
  for (const figure of all("figure")) {
    const legend = all(".key", figure);
    const off = (kind) => new Set(legend.filter((k) => kind in k.dataset).filter((k) => k.getAttribute("aria-pressed") === "false").map((k) => k.dataset[kind]));
    for (const key of legend) {
      key.addEventListener("click", () => {
        key.setAttribute("aria-pressed", key.getAttribute("aria-pressed") === "true" ? "false" : "true");
        const sides = off("side"), names = off("name");
        for (const series of all(".series", figure)) {
          series.classList.toggle("off", sides.has(series.dataset.side) || names.has(series.dataset.name));
        }
      });
    }
  }

  // The theme: the theme of the system, or always light, or always dark.
  const theme = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  const paint = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    theme.textContent = "Theme: " + name;
    theme.setAttribute("aria-label", "Theme: " + (name === "auto" ? "as the system has it" : name));
    theme.dataset.now = name;
  };
  const kept = () => {
    try { return localStorage.getItem("quire-theme"); } catch { return null; }
  };
  paint(themes.includes(kept()) ? kept() : "auto");
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(theme.dataset.now) + 1) % themes.length];
    paint(next);
    try { localStorage.setItem("quire-theme", next); } catch { /* Without storage, the choice lasts as long as the page. */ }
  });

  // The button opens or closes all tables at once.
  const unfold = document.getElementById("unfold");
  if (unfold) unfold.addEventListener("click", () => {
    const open = unfold.getAttribute("aria-pressed") !== "true";
    unfold.setAttribute("aria-pressed", String(open));
    for (const details of all(".experiment details")) details.open = open;
  });

  // A reader cannot open sections on paper. So all lists of losses are opened for the print; tables stay as they are.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = all(".more:not([open]), .machine-of:not([open]), .gone-of:not([open])");
    for (const details of unfolded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of unfolded) details.open = false;
    unfolded = [];
  });

  // A click on a bar of the flame graph widens it to the whole width. Bars below it get that width too; bars beside it are hidden.
  const calls = all(".flame .call").map((e) => ({ e, x: parseFloat(e.getAttribute("x")), w: parseFloat(e.getAttribute("width")), y: parseFloat(e.getAttribute("y")) }));
  const least = 1e-2;
  // The page is valid XML too. So the script has no characters that are markup in XML, and `every` replaces the and-operator.
  const every = (...conditions) => conditions.every(Boolean);
  for (const c of calls) {
    c.e.addEventListener("click", () => {
      for (const b of calls) {
        const below = every(b.y >= c.y, c.x + least >= b.x, b.x + b.w >= c.x + c.w - least);
        const from = below ? 0 : ((b.x - c.x) / c.w) * 100, width = below ? 100 : (b.w / c.w) * 100;
        const inside = every(c.y > b.y, from > -100 * least, 100 + 100 * least > from + width);
        b.e.style.display = below || inside ? "" : "none";
        b.e.setAttribute("x", from + "%");
        b.e.setAttribute("width", width + "%");
        b.e.classList.toggle("narrow", 2.5 > width);
        b.e.classList.toggle("slim", 9 > width);
      }
    });
  }

  // The selection of one run, if the page has several.
  const machine = document.getElementById("machine");
  if (machine) {
    machine.addEventListener("change", () => {
      const chosen = (run) => machine.value === "" || run === machine.value;
      for (const part of all("[data-run]")) part.hidden = !chosen(part.dataset.run);
      const against = document.getElementById("against");
      if (against) against.hidden = all(".run", against).every((run) => run.hidden);
    });
  }
})();
