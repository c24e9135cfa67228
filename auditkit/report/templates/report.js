"use strict";
(() => {
  const tools = document.querySelector(".tools");
  const list = document.querySelector(".cards");
  if (!tools || !list) return;
  const cards = [...list.children];
  const told = tools.querySelector("output");
  const place = (card) => Number(card.dataset.place);
  const order = (key) => (first, second) => {
    const a = first.dataset[key], b = second.dataset[key];
    if (a === b) return place(first) - place(second);
    if (a === "") return 1;
    return b === "" ? -1 : Number(a) - Number(b);
  };
  const show = () => {
    const wanted = new FormData(tools);
    const words = String(wanted.get("find") || "").toLowerCase().trim();
    let shown = 0;
    for (const card of cards) {
      const fits = (name) => !wanted.get(name) || card.dataset[name] === wanted.get(name);
      card.hidden = !(fits("role") && fits("bundle") && card.dataset.search.includes(words));
      shown += card.hidden ? 0 : 1;
    }
    const key = wanted.get("sort");
    list.append(...[...cards].sort(key ? order(key) : (a, b) => place(a) - place(b)));
    told.textContent = shown + " of " + cards.length + " images";
  };
  tools.hidden = false;
  tools.addEventListener("input", show);
  tools.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
