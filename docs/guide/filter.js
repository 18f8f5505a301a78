// The verdicts as a list that can be filtered by paper and by verdict.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  if (document.querySelector("h1")?.textContent.trim().startsWith("Verdicts") !== true) return;
  document.body.classList.add("verdicts");
  const rows = [...document.querySelectorAll("article table tbody tr")].map((row) => {
    const wrapped = row.closest(".md-typeset__scrollwrap") ?? row.closest("table");
    let heading = wrapped.previousElementSibling;
    while (heading && heading.tagName !== "H2") heading = heading.previousElementSibling;
    const paper = heading?.firstChild.textContent.trim() ?? "";
    [...row.cells].forEach((cell, i) => (cell.dataset.label = row.closest("table").tHead.rows[0].cells[i].textContent));
    return { row, heading, paper, verdict: row.cells[4].textContent.trim() };
  });
  const choice = (name, values) => {
    const label = document.createElement("label");
    const select = document.createElement("select");
    for (const value of ["all", ...new Set(values)]) select.add(new Option(value));
    label.append(`${name} `, select);
    return [label, select];
  };
  const [papers, paper] = choice("Paper", rows.map((row) => row.paper));
  const [verdicts, verdict] = choice("Verdict", rows.map((row) => row.verdict));
  const said = document.createElement("output");
  const form = document.createElement("form");
  form.className = "filter";
  form.append(papers, verdicts, said);
  rows[0].heading.before(form);
  const filter = () => {
    let shown = 0;
    for (const { row, paper: its, verdict: found } of rows) {
      row.hidden = !["all", its].includes(paper.value) || !["all", found].includes(verdict.value);
      shown += !row.hidden;
    }
    said.textContent = `${shown} of ${rows.length} claims`;
  };
  form.addEventListener("input", filter);
  filter();
});
