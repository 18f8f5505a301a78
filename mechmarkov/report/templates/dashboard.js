// Filters and sorts the dashboard's rows; the address keeps what was chosen.
"use strict";
(() => {
  const rows = [...document.querySelectorAll(".runs-table tbody tr")];
  const search = document.getElementById("search");
  const boxes = [...document.querySelectorAll("[name=badge]")];
  const count = document.getElementById("count");
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const badges = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    let shown = 0;
    for (const row of rows) {
      row.hidden = !badges.has(row.dataset.badge) || !words.every((word) => texts.get(row).includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} runs`;
    const off = boxes.filter((box) => !box.checked).map((box) => box.value);
    const kept = new URLSearchParams({ ...(search.value && { search: search.value }), ...(off.length && { without: off.join(",") }) });
    history.replaceState(null, "", `#${kept}`);
  };
  const kept = new URLSearchParams(location.hash.slice(1));
  search.value = kept.get("search") ?? "";
  const off = (kept.get("without") ?? "").split(",");
  for (const box of boxes) box.checked = !off.includes(box.value);
  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[head.cellIndex].dataset.value;
      const order = (a, b) => (button.dataset.sort === "number" ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true }));
      // What has no value is last, whichever way.
      rows.sort((a, b) => (!value(a) || !value(b) ? !value(a) - !value(b) : (up ? 1 : -1) * order(value(a), value(b))));
      rows[0]?.parentNode.append(...rows);
    });
  }
  document.querySelector(".filters").addEventListener("input", filter);
  document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
  filter();
})();
