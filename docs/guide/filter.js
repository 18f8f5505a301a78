// The verdicts as a list that can be filtered by paper and by verdict; a link to a row opens what is folded away.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const title = document.querySelector("h1")?.textContent.trim() ?? "";
  if (!["Verdicts", "Our questions", "Our derivations"].some((name) => title.startsWith(name))) return;
  document.body.classList.add("verdicts");
  const columns = (row) => [...row.closest("table").tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const rows = [];
  for (const row of document.querySelectorAll("article table tbody tr")) {
    const heads = columns(row);
    const at = heads.indexOf("Verdict");
    if (at < 0) continue; // the table of papers
    row.closest("table").dataset.claims = "";
    const wrapped = row.closest(".md-typeset__scrollwrap") ?? row.closest("table");
    let heading = wrapped.previousElementSibling;
    while (heading && heading.tagName !== "H2") heading = heading.previousElementSibling;
    [...row.cells].forEach((cell, i) => (cell.dataset.label = heads[i]));
    const name = row.querySelector("a[href^='#']")?.getAttribute("href").slice(1);
    const folded = name ? document.getElementById(name) : null;
    const paper = heading?.firstChild.textContent.trim() ?? "";
    rows.push({ row, folded, heading, paper, verdict: row.cells[at].textContent.trim() });
  }
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
    for (const { row, folded, paper: its, verdict: found } of rows) {
      row.hidden = !["all", its].includes(paper.value) || !["all", found].includes(verdict.value);
      if (folded) folded.hidden = row.hidden;
      shown += !row.hidden;
    }
    said.textContent = `${shown} of ${rows.length} claims`;
  };
  const unfold = () => {
    const folded = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!(folded instanceof HTMLDetailsElement)) return;
    folded.hidden = false;
    folded.open = true;
    folded.scrollIntoView();
  };
  form.addEventListener("input", filter);
  addEventListener("hashchange", unfold);
  filter();
  unfold();
});
