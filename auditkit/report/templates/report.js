"use strict";
(() => {
  const tools = document.querySelector(".tools");
  const list = document.querySelector(".cards");
  if (!tools || !list) return;
  const cards = [...list.children];
  const output = tools.querySelector("output");
  const position = (card) => Number(card.dataset.place);
  const order = (key) => (first, second) => {
    const a = first.dataset[key], b = second.dataset[key];
    if (a === b) return position(first) - position(second);
    if (a === "") return 1;
    return b === "" ? -1 : Number(a) - Number(b);
  };
  const show = () => {
    const fields = new FormData(tools);
    const words = String(fields.get("find") || "").toLowerCase().trim();
    let visible = 0;
    for (const card of cards) {
      const fits = (name) => !fields.get(name) || card.dataset[name] === fields.get(name);
      card.hidden = !(fits("role") && fits("bundle") && card.dataset.search.includes(words));
      visible += card.hidden ? 0 : 1;
    }
    const key = fields.get("sort");
    list.append(...[...cards].sort(key ? order(key) : (a, b) => position(a) - position(b)));
    output.textContent = visible + " of " + cards.length + " images";
  };
  tools.hidden = false;
  tools.addEventListener("input", show);
  tools.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
