// Draws the report's figures from its JSON blocks: each when it comes into view, all before printing.
"use strict";
(() => {
  const PRINT_WIDTH = 640; // pixels; a figure on A4 or Letter

  const figures = [...document.querySelectorAll("figure[data-kind]")];
  const drawn = new Set();

  function drawPlotly(place, { figure }) {
    const layout = {
      ...figure.layout,
      autosize: true,
      font: { ...figure.layout.font, family: getComputedStyle(place).fontFamily },
      margin: { ...figure.layout.margin, t: 12 }, // the title is the page's heading
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : figure.layout.dragmode ?? "zoom",
    };
    delete layout.width;
    const config = {
      responsive: true,
      displaylogo: false,
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]], // none that leaves the page
    };
    Plotly.newPlot(place, { data: figure.data, layout, frames: figure.frames ?? [], config });
    place.querySelectorAll(".main-svg").forEach((svg, index) => {
      if (index) return svg.setAttribute("aria-hidden", "true");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", place.dataset.label);
    });
  }

  // One panel a head, each drawn when first asked for and kept: CircuitsVis draws on a canvas of its own.
  function drawAttention(place, data, id) {
    const show = (head) => {
      for (const panel of place.children) panel.hidden = panel.id !== `${id}-head-${head}`;
      if (document.getElementById(`${id}-head-${head}`)) return;
      const panel = document.createElement("div");
      panel.id = `${id}-head-${head}`;
      panel.className = "panel";
      panel.setAttribute("role", "img");
      panel.setAttribute("aria-label", `${data.heads[head]}. ${place.dataset.label}`);
      place.append(panel);
      CircuitsVis.render(panel.id, CircuitsVis.AttentionPattern, {
        tokens: data.tokens,
        attention: data.patterns[head],
        minValue: -data.strongest,
        maxValue: data.strongest,
        positiveColor: "#08519c",
        upperTriColor: "#f1f2f3",
        maskUpperTri: data.causal,
      });
    };
    for (const input of document.getElementsByName(`${id}-head`)) {
      input.addEventListener("change", () => show(Number(input.value)));
      if (input.checked && Number(input.value) > 0) show(Number(input.value));
    }
    if (!place.children.length) show(0);
  }

  function draw(figure) {
    if (drawn.has(figure)) return;
    drawn.add(figure);
    const place = figure.querySelector(".drawing");
    try {
      const data = JSON.parse(document.getElementById(`${figure.id}-data`).textContent);
      if (data.kind === "plotly") drawPlotly(place, data);
      else drawAttention(place, data, figure.id);
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

  const plots = () => document.querySelectorAll(".js-plotly-plot");
  addEventListener("beforeprint", () => {
    figures.forEach(draw);
    plots().forEach((plot) => Plotly.relayout(plot, { width: PRINT_WIDTH }));
  });
  addEventListener("afterprint", () => {
    plots().forEach((plot) => Plotly.relayout(plot, { width: null, autosize: true }));
  });
})();
