// Draws the report's figures from its JSON blocks: each when it comes into view, all before printing.
"use strict";
(() => {
  const NARROW = 480; // pixels
  const ROW = 56; // twice the height of a legend's row
  const PRINT_WIDTH = 640; // pixels; a figure on A4 or Letter

  const figures = [...document.querySelectorAll("figure[data-kind]")];
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const drawn = new Map(); // figure → its data
  const steps = read("steps-data");
  let step = steps.length - 1; // what the slider shows, as an index

  const placeOf = (figure) => figure.querySelector(".drawing");
  const now = (data) => (data.at_step ? data.at_step[step] : data);

  // The slider's step on an axis that is the training; dashed, so that no grid line is taken for it.
  const mark = (x) => ({
    type: "line",
    name: "step",
    xref: "x",
    yref: "paper",
    x0: x,
    x1: x,
    y0: 0,
    y1: 1,
    line: { color: "#8a929b", width: 3, dash: "dash" },
  });

  // A figure is one picture with one name to a screen reader.
  function giveName(place) {
    place.querySelectorAll(".main-svg").forEach((svg, index) => {
      if (index) return svg.setAttribute("aria-hidden", "true");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", place.dataset.label);
    });
  }

  function drawPlotly(place, { figure, marks }) {
    const shapes = figure.layout.shapes ?? [];
    const layout = {
      ...figure.layout,
      shapes: marks ? [...shapes, mark(marks[step])] : shapes,
      autosize: true,
      font: { ...figure.layout.font, family: getComputedStyle(place).fontFamily },
      margin: { ...figure.layout.margin, t: 12 }, // the title is the page's heading
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : figure.layout.dragmode ?? "zoom",
    };
    delete layout.width;
    // A legend may take half of the height, and on a phone it has a row for each name.
    const names = figure.data.filter((trace) => trace.name && trace.showlegend !== false).length;
    if (layout.height && place.clientWidth < NARROW) layout.height += ROW * Math.max(0, names - 6);
    // What would not fit keeps its width, and its frame scrolls.
    const fits = !(layout.meta?.least > place.clientWidth);
    if (!fits) {
      Object.assign(layout, { width: layout.meta.least, autosize: false });
      place.classList.add("wide");
      place.tabIndex = 0;
      place.setAttribute("role", "region");
      place.setAttribute("aria-label", document.getElementById(place.closest("figure").getAttribute("aria-labelledby")).textContent);
    }
    const config = {
      responsive: fits,
      displaylogo: false,
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]], // none that leaves the page
    };
    Plotly.react(place, { data: figure.data, layout, frames: figure.frames ?? [], config });
    giveName(place);
    if (place.dataset.named) return;
    place.dataset.named = "again after every redraw"; // also those of plotly's own, as when the window grows
    place.on("plotly_afterplot", () => giveName(place));
  }

  // Attention comes in 16 bits, as shares of the strongest; of a causal pattern, what is seen.
  const MOST_LEVEL = 32767;
  function patternsOf(view) {
    const bytes = Uint8Array.from(atob(view.patterns), (character) => character.charCodeAt(0));
    const levels = new Int16Array(bytes.buffer);
    let next = 0;
    const value = () => Number(((levels[next++] / MOST_LEVEL) * view.strongest).toFixed(5));
    const row = (query) => view.tokens.map((_, key) => (view.causal && key > query ? 0 : value()));
    return view.heads.map(() => view.tokens.map((_, query) => row(query)));
  }

  const headOf = (id) => Number(document.querySelector(`input[name="${id}-head"]:checked`)?.value ?? 0);
  const sequenceOf = (id) => Number(document.getElementsByName(`${id}-sequence`)[0]?.value ?? 0);

  // One panel for each head, sequence and step, drawn when first asked for and kept: CircuitsVis draws on a
  // canvas of its own.
  function drawAttention(place, data, id) {
    const [head, sequence] = [headOf(id), sequenceOf(id)];
    const name = `${id}-head-${head}${sequence ? `-sequence-${sequence}` : ""}${data.at_step ? `-step-${step}` : ""}`;
    for (const panel of place.children) panel.hidden = panel.id !== name;
    if (document.getElementById(name)) return;
    const first = now(data);
    const view = sequence ? first.others[sequence - 1] : first;
    const panel = document.createElement("div");
    panel.id = name;
    panel.className = "panel";
    panel.setAttribute("role", "img");
    panel.setAttribute("aria-label", `${view.heads[head]}. ${place.dataset.label}`);
    // The panel's label says all that its canvas, which has none, could say.
    const stage = document.createElement("div");
    stage.id = `${name}-stage`;
    stage.setAttribute("aria-hidden", "true");
    panel.append(stage);
    place.append(panel);
    CircuitsVis.render(stage.id, CircuitsVis.AttentionPattern, {
      tokens: view.tokens,
      attention: patternsOf(view)[head],
      minValue: -data.strongest,
      maxValue: data.strongest,
      positiveColor: "#08519c",
      upperTriColor: "#f1f2f3",
      maskUpperTri: view.causal,
    });
  }

  // A step may have other words for a figure, or no such figure.
  function show(figure) {
    const [data, place] = [drawn.get(figure), placeOf(figure)];
    const shown = now(data);
    place.hidden = figure.querySelector("button.csv").disabled = !shown;
    figure.querySelector(".absent").hidden = Boolean(shown);
    if (!shown) return;
    if (data.at_step) {
      figure.querySelector("h3").textContent = shown.title;
      figure.querySelector(".caption").textContent = shown.caption;
      place.dataset.label = `${shown.title}. ${shown.caption}`;
    }
    if (data.kind === "plotly") drawPlotly(place, shown);
    else drawAttention(place, data, figure.id);
  }

  function draw(figure) {
    if (drawn.has(figure)) return;
    const place = placeOf(figure);
    try {
      drawn.set(figure, read(`${figure.id}-data`));
      show(figure);
      for (const input of figure.querySelectorAll(".heads input, .sequence select"))
        input.addEventListener("change", () => show(figure));
      place.classList.add("drawn");
    } catch (error) {
      place.textContent = `This figure could not be drawn: ${error.message}`;
      console.error(`${figure.id}: ${error.message}`);
    }
  }

  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        observer.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "400px" },
  );
  figures.forEach((figure) => observer.observe(figure));

  // CircuitsVis draws a moment after it is asked, which is too late for a printer: its figures are drawn when
  // the page is idle. plotly.js draws at once.
  const whenIdle = window.requestIdleCallback ?? ((task) => setTimeout(task, 200));
  const next = figures.filter((figure) => figure.dataset.kind === "attention");
  const drawNext = () => {
    if (!next.length) return;
    draw(next.shift());
    whenIdle(drawNext);
  };
  whenIdle(drawNext);

  const slider = document.getElementById("step");
  function move() {
    step = Number(slider.value);
    document.getElementById("step-shown").textContent = steps[step];
    slider.setAttribute("aria-valuetext", `step ${steps[step]}`);
    for (const [figure, data] of drawn) if (data.at_step || data.marks) show(figure);
  }
  if (slider) {
    slider.value = step; // a browser that reloads a page keeps where its sliders were
    slider.addEventListener("input", move);
    move();
  }

  // What a figure shows, as rows: of a plot every point of every trace, of attention every pair.
  function rows(figure) {
    const data = drawn.get(figure);
    if (data.kind !== "plotly") {
      const first = now(data);
      const view = sequenceOf(figure.id) ? first.others[sequenceOf(figure.id) - 1] : first;
      const found = [["head", "query", "query_token", "key", "key_token", "attention"]];
      patternsOf(view).forEach((pattern, head) =>
        pattern.forEach((row, query) =>
          row.forEach((value, key) =>
            found.push([view.heads[head], query, view.tokens[query], key, view.tokens[key], value]),
          ),
        ),
      );
      return found;
    }
    const told = placeOf(figure)._fullData.filter((trace) => trace.meta?.row).map((trace) => trace.meta.row);
    if (told.length) return [Object.keys(told[0]), ...told.map(Object.values)];
    const found = [["trace", "x", "y", "value", "error"]];
    placeOf(figure)._fullData.forEach((trace, number) => {
      const name = trace.name ?? number;
      if (trace.z) {
        [...trace.z].forEach((row, i) =>
          [...row].forEach((value, j) => found.push([name, trace.x?.[j] ?? j, trace.y?.[i] ?? i, value, ""])),
        );
      } else {
        const error = trace.error_y?.array ?? [];
        [...(trace.y ?? [])].forEach((y, i) => found.push([name, trace.x?.[i] ?? i, y, "", error[i] ?? ""]));
      }
    });
    return found;
  }

  // A cell that begins like a formula would be run by a spreadsheet.
  const cell = (value) => {
    let text = String(value ?? "");
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  for (const button of document.querySelectorAll("button.csv")) {
    button.addEventListener("click", () => {
      const figure = document.getElementById(button.dataset.figure);
      draw(figure);
      const text = rows(figure).map((row) => row.map(cell).join(",")).join("\r\n");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([`${text}\r\n`], { type: "text/csv" }));
      link.download = `${figure.id}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  const plots = () => document.querySelectorAll(".js-plotly-plot");
  addEventListener("beforeprint", () => {
    figures.forEach(draw);
    plots().forEach((plot) => Plotly.relayout(plot, { width: PRINT_WIDTH }));
  });
  addEventListener("afterprint", () => {
    plots().forEach((plot) => Plotly.relayout(plot, { width: null, autosize: true }));
  });
})();
