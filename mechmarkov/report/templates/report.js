// Draws the report's figures from its JSON blocks: each when it comes into view, all before printing.
"use strict";
(async () => {
  const NARROW = 480; // pixels
  const ROW = 56; // twice the height of a legend's row
  const CELL = 12; // pixels of a thumbnail's cell
  const MOST_ARRANGED = 7; // items of a card
  const LEAST_GAIN = 48; // pixels
  const PRINT_WIDTH = 330; // pixels; half of A4 or Letter
  const PRINT_HEIGHT = 260;
  const PRINT_PAIR_HEIGHT = 190; // of a comparison's
  const PRINT_ZOOMED = { "figure-curve": 520, "figure-circuit": 390 }; // pixels, before the stylesheet's zoom

  const BESIDE = matchMedia("(min-width: 68rem)"); // as in the stylesheet
  const PHONE = matchMedia("(max-width: 40rem)").matches;
  for (const fold of document.querySelectorAll(".fold")) fold.open &&= !PHONE; // a phone has the verdicts, unfolded one by one

  const figures = [...document.querySelectorAll("figure[data-kind]")];
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const drawn = new Map(); // figure → its data
  const visible = new Set();
  const shownAt = new Map(); // figure → the step that it was last drawn at
  const steps = read("steps-data");
  let step = steps.length - 1; // what the slider shows, as an index

  // The libraries come packed; the policy admits them by their hashes.
  async function unpack(script) {
    const text = atob(script.textContent.trim());
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const library = document.createElement("script");
    library.textContent = await new Response(stream).text();
    document.body.append(library);
    script.remove();
  }

  const placeOf = (figure) => figure.querySelector(".drawing");
  const now = (data) => (data.at_step ? data.at_step[step] : data);

  // Over the plot, so that moving it draws nothing: the slider's step on an axis that is the training, or the
  // chosen cell of a diagram, as [panel, column, row].
  function moveCursor(place, marks) {
    const mark = marks[step];
    const [panel, column, row] = [mark].flat().length > 1 ? mark : [0, mark];
    const [x, y] = ["xaxis", "yaxis"].map((name) => place._fullLayout?.[panel ? name + (panel + 1) : name]);
    if (!x || !place._fullLayout._size) return;
    const cursor = place.querySelector(":scope > .cursor") ?? document.createElement("div");
    const { t, h } = place._fullLayout._size;
    cursor.className = "cursor";
    cursor.dataset.at = mark;
    cursor.style.cssText = `left:${x._offset + x.d2p(column)}px;top:${t}px;height:${h}px`;
    if (row !== undefined) {
      const [left, right, bottom, top] = [x.d2p(column - 0.5), x.d2p(column + 0.5), y.d2p(row - 0.5), y.d2p(row + 0.5)];
      cursor.className = "cursor frame";
      cursor.style.cssText = `left:${x._offset + left}px;top:${y._offset + top}px;width:${right - left}px;height:${bottom - top}px`;
    }
    place.append(cursor);
  }

  // A figure is one picture with one name to a screen reader.
  function giveName(place) {
    place.querySelectorAll(".main-svg").forEach((svg, index) => {
      if (index) return svg.setAttribute("aria-hidden", "true");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", place.dataset.label);
    });
  }

  const threshold = document.getElementById("threshold");
  const isShown = (trace) => !trace.meta?.grey || 100 * trace.meta.share >= Number(threshold?.value ?? 0);

  function drawPlotly(place, { figure, marks }) {
    const layout = {
      ...figure.layout,
      autosize: true,
      font: { ...figure.layout.font, family: getComputedStyle(place).fontFamily },
      margin: { ...figure.layout.margin, t: Math.min(figure.layout.margin?.t ?? 12, 28) }, // the title is the page's heading
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : figure.layout.dragmode ?? "zoom",
    };
    delete layout.width;
    // Beside the circuit the curve is as tall as that.
    if (place.closest("#figure-curve") && BESIDE.matches)
      layout.height = Math.max(...[...document.querySelectorAll(".hero .drawing")].map((one) => Number.parseFloat(one.style.getPropertyValue("--height"))));
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
    Plotly.react(place, { data: figure.data.filter(isShown), layout, frames: figure.frames ?? [], config });
    place.style.height = `${place._fullLayout.height}px`; // plotly fills its frame when the window changes
    const after = () => {
      giveName(place);
      if (marks) moveCursor(place, marks);
    };
    after();
    if (place.dataset.named) return;
    place.dataset.named = "again after every redraw"; // also those of plotly's own, as when the window grows
    place.on("plotly_afterplot", after);
    place.on("plotly_clickannotation", ({ annotation }) => open(annotation.name));
    place.on("plotly_click", ({ points: [{ customdata }] }) => slider?.tagName === "SELECT" && go(customdata));
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

  // As log2 of the multiple of uniform attention, 0 where it is uniform or less: one scale for all runs.
  function multiplesOf(view) {
    const unseen = firstOf(view);
    const darkest = view.darkest ?? 4;
    return patternsOf(view).map((pattern) =>
      pattern.map((row, query) => {
        const seen = unseen + (view.causal ? query + 1 : row.length);
        return row.map((value) => Math.min(Math.max(Math.log2(Math.max(value * seen, 1e-9)), 0), darkest));
      }),
    );
  }

  // Of each head the keys that an ideal one reads, as [query, key].
  function idealOf(view) {
    const bytes = Uint8Array.from(atob(view.ideal ?? ""), (character) => character.charCodeAt(0));
    const found = view.heads.map(() => []);
    const n = view.tokens.length;
    bytes.forEach((byte, i) => {
      for (let bit = 0; bit < 8; bit++) {
        const cell = 8 * i + bit;
        if (byte & (128 >> bit)) found[Math.floor(cell / n ** 2)].push([Math.floor(cell / n) % n, cell % n]);
      }
    });
    return found;
  }

  const viewOf = (data, sequence) => (sequence ? now(data).others[sequence - 1] : now(data));

  function drawThumbnails(figure, data) {
    const view = viewOf(data, sequenceOf(figure.id));
    const [multiples, ideal] = [multiplesOf(view), idealOf(view)];
    figure.querySelectorAll(".heads canvas").forEach((canvas, head) => {
      const size = multiples[head].length;
      canvas.width = canvas.height = size * CELL;
      const context = canvas.getContext("2d");
      multiples[head].forEach((row, y) =>
        row.forEach((value, x) => {
          context.fillStyle = `rgba(8,81,156,${value / data.darkest})`;
          context.fillRect(x * CELL, y * CELL, CELL, CELL);
        }),
      );
      context.strokeStyle = "#d55e00";
      context.lineWidth = 1.5;
      for (const [y, x] of ideal[head]) context.strokeRect(x * CELL + 0.5, y * CELL + 0.5, CELL - 1, CELL - 1);
      canvas.dataset.outlined = ideal[head].length;
    });
  }

  const headOf = (id) => Number(document.querySelector(`input[name="${id}-head"]:checked`)?.value ?? 0);
  const sequenceOf = (id) => Number(document.getElementsByName(`${id}-sequence`)[0]?.value ?? 0);

  // CircuitsVis numbers the tokens of its axes from 0, and the end of a context begins later.
  const firstOf = (view) => view.positions - view.tokens.length;
  function numberedTokens(view) {
    const tokens = view.tokens.map((token, i) => `${token}, position ${firstOf(view) + i}`); // in a hover
    tokens.map = (name) => view.tokens.map((token, i) => name(token, firstOf(view) + i)); // along the axes
    return tokens;
  }

  // One panel for each head, sequence and step, drawn when first asked for and kept: CircuitsVis draws on a
  // canvas of its own.
  function drawAttention(place, data, id) {
    const [head, sequence] = [headOf(id), sequenceOf(id)];
    const name = `${id}-head-${head}${sequence ? `-sequence-${sequence}` : ""}${data.at_step ? `-step-${step}` : ""}`;
    for (const panel of place.children) panel.hidden = panel.id !== name;
    if (document.getElementById(name)) return;
    const view = viewOf(data, sequence);
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
      tokens: numberedTokens(view),
      attention: multiplesOf(view)[head],
      minValue: -data.darkest,
      maxValue: data.darkest,
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
    shownAt.set(figure, step);
    if (data.kind === "plotly") return drawPlotly(place, shown);
    drawAttention(place, data, figure.id);
    drawThumbnails(figure, data);
    const [head, link] = [now(data).heads[headOf(figure.id)], figure.querySelector(".outlines")];
    const panel = document.getElementById(`head-${head}`);
    if (link) Object.assign(link, { hidden: !panel?.matches("[data-outlined]"), onclick: () => open(head) });
  }

  function draw(figure) {
    if (drawn.has(figure)) return;
    const place = placeOf(figure);
    try {
      drawn.set(figure, read(`${figure.id}-data`));
      show(figure);
      for (const input of figure.querySelectorAll(".heads input, .sequence select"))
        input.addEventListener("change", () => {
          if (input.tagName === "SELECT") remember({ sequence: input.value });
          show(figure);
        });
      place.classList.add("drawn");
    } catch (error) {
      place.textContent = `This figure could not be drawn: ${error.message}`;
      console.error(`${figure.id}: ${error.message}`);
    }
  }

  const refresh = (figure) => {
    const data = drawn.get(figure);
    if (!data) draw(figure);
    else if (data.at_step && shownAt.get(figure) !== step) {
      show(figure);
      return true;
    }
  };
  // Of what is in view, a head's panel may cover a figure.
  function inSight() {
    const panel = document.querySelector(".inside:not([hidden])");
    const over = panel?.getBoundingClientRect();
    return [...visible].filter((figure) => {
      if (!panel || panel.contains(figure)) return true;
      const { left, top, right, bottom } = figure.getBoundingClientRect();
      return left < over.left || top < over.top || right > over.right || bottom > over.bottom;
    });
  }
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) visible.delete(target);
        else {
          visible.add(target);
          refresh(target);
        }
      }
    },
    { rootMargin: "100px" },
  );

  // The words of a step are shown before the libraries are there.
  const slider = document.getElementById("step"); // or the choice of a sweep's cell
  const ofSteps = document.querySelectorAll("[data-at]"); // words; no cursor is drawn yet
  function move() {
    step = Number(slider.value);
    if (slider.type === "range") {
      document.getElementById("step-shown").textContent = steps[step];
      slider.setAttribute("aria-valuetext", `step ${steps[step]}`);
    }
    for (const words of ofSteps) words.hidden = Number(words.dataset.at) !== step;
    for (const [figure, { marks }] of drawn) if (marks) moveCursor(placeOf(figure), marks);
    document.documentElement.dataset.redrawn = inSight().filter(refresh).length; // by this event
    remember({ [slider.dataset.kept]: steps[step] });
  }

  function go(index) {
    if (index === step || !(index in steps)) return;
    slider.value = index;
    move();
  }

  // The address keeps step, head and sequence: a copy of it shows what its sender saw.
  const address = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  function remember(state) {
    const kept = address();
    for (const [name, value] of Object.entries(state)) value === "" ? kept.delete(name) : kept.set(name, value);
    if (!location.hash || location.hash.includes("=")) history.replaceState(null, "", `#${kept}`);
  }

  function open(head) {
    for (const panel of document.querySelectorAll(".inside")) panel.hidden = panel.id !== `head-${head}`;
    for (const button of document.querySelectorAll("button.head")) button.setAttribute("aria-expanded", button.dataset.head === head);
    remember({ head: head ?? "" });
    if (head) choose(head);
    inSight().forEach(refresh);
  }
  function choose(head) {
    for (const label of document.querySelectorAll(".heads label"))
      if (label.textContent.trim() === head && !label.querySelector("input").checked) label.querySelector("input").click();
  }
  for (const button of document.querySelectorAll("button.head"))
    button.addEventListener("click", () => open(button.getAttribute("aria-expanded") === "true" ? undefined : button.dataset.head));
  for (const button of document.querySelectorAll(".inside .close")) button.addEventListener("click", () => open());
  addEventListener("keydown", ({ key }) => key === "Escape" && document.querySelector(".inside:not([hidden])") && open());

  function recall() {
    const kept = address();
    if (slider) {
      const found = steps.indexOf(Number(kept.get(slider.dataset.kept) ?? NaN));
      slider.value = found >= 0 ? found : slider.type === "range" ? steps.length - 1 : 0; // a browser that reloads a page keeps where its sliders were
      move();
    }
    for (const select of document.querySelectorAll(".sequence select")) select.value = kept.get("sequence") ?? "0";
    if (kept.get("head")) open(kept.get("head"));
    else choose(document.querySelector("main").dataset.named ?? "");
  }

  if (slider) {
    const curve = document.getElementById("figure-curve");
    const pick = ({ clientX }) => {
      const place = placeOf(curve);
      const axis = place._fullLayout?.xaxis;
      if (!axis) return;
      const x = axis.p2d(clientX - place.getBoundingClientRect().left - axis._offset);
      const distances = drawn.get(curve).marks.map((mark) => Math.abs(mark - x));
      go(distances.indexOf(Math.min(...distances)));
    };
    if (curve) {
      placeOf(curve).addEventListener("pointerdown", pick);
      placeOf(curve).addEventListener("pointermove", (event) => event.buttons && pick(event));
    }
    slider.addEventListener("input", move);
    const play = document.getElementById("play");
    let timer = 0;
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      play.textContent = "Play";
      play.setAttribute("aria-pressed", "false");
    };
    play?.addEventListener("click", () => {
      if (timer) return stop();
      if (step === steps.length - 1) go(0);
      play.textContent = "Pause";
      play.setAttribute("aria-pressed", "true");
      timer = setInterval(() => (step < steps.length - 1 ? go(step + 1) : stop()), 600);
    });
  }
  const unfold = () => {
    const id = location.hash.slice(1); // anything: who opens the page writes it
    if (id && !id.includes("=")) document.querySelector(`#${CSS.escape(id)} .fold`)?.setAttribute("open", "");
  };
  recall();
  unfold();
  addEventListener("hashchange", () => {
    recall();
    unfold();
  });
  threshold?.addEventListener("input", () => {
    document.getElementById("threshold-shown").textContent = `${threshold.value} %`;
    show(document.getElementById("figure-circuit"));
  });

  // A card's items lie in the columns in which they end highest; an item moves only for a gain that is seen.
  const itemsOf = (stack) => [...stack.querySelectorAll("figure, .reading, .method")];
  function arrange(stack) {
    const [items, look] = [itemsOf(stack), getComputedStyle(stack)];
    const [n, columnGap] = [Number(look.getPropertyValue("--columns")), look.columnGap];
    if (!n) return items.forEach((item) => Object.assign(item.style, { gridColumnStart: "", gridRowEnd: "" })); // one below the other
    const spans = items.map((item) => Math.ceil(item.getBoundingClientRect().height + Number.parseFloat(columnGap)));
    const ends = (columns) => {
      const filled = Array(n).fill(0);
      columns.forEach((column, i) => (filled[column] += spans[i]));
      return Math.max(...filled);
    };
    let best = items.map((item, i) => Number(item.style.gridColumnStart || i + 1) - 1).map((column) => column % n);
    const ways = items.length <= MOST_ARRANGED ? n ** (items.length - 1) : 0; // the first stays where it is
    for (let way = 0; way < ways; way++) {
      const columns = items.map((_, i) => Math.floor(way / n ** (items.length - 1 - i)) % n);
      if (ends(columns) < ends(best) - LEAST_GAIN) best = columns;
    }
    items.forEach((item, i) => Object.assign(item.style, { gridColumnStart: best[i] + 1, gridRowEnd: `span ${spans[i]}` }));
  }
  const heights = new ResizeObserver((changes) => new Set(changes.map(({ target }) => target.closest(".stacked"))).forEach(arrange));
  for (const stack of document.querySelectorAll(".stacked")) {
    stack.classList.add("rows");
    for (const item of itemsOf(stack)) heights.observe(item);
  }

  for (const library of document.querySelectorAll(".library")) await unpack(library);
  figures.forEach((figure) => observer.observe(figure));
  const curve = document.getElementById("figure-curve");
  BESIDE.addEventListener("change", () => drawn.has(curve) && show(curve));

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

  // What a figure shows, as rows: of a plot every point of every trace, of attention every pair.
  function rows(figure) {
    const data = drawn.get(figure);
    if (data.kind !== "plotly") {
      const view = viewOf(data, sequenceOf(figure.id));
      const found = [["head", "query", "query_token", "key", "key_token", "attention"]];
      const first = firstOf(view);
      patternsOf(view).forEach((pattern, head) =>
        pattern.forEach((row, query) =>
          row.forEach((value, key) =>
            found.push([view.heads[head], first + query, view.tokens[query], first + key, view.tokens[key], value]),
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
        const [at, along, { array: error = [] } = {}] =
          trace.orientation === "h" ? [trace.y, trace.x, trace.error_x] : [trace.x, trace.y, trace.error_y]; // bars may lie
        [...(along ?? [])].forEach((y, i) => found.push([name, trace.customdata?.[i] ?? at?.[i] ?? i, y, "", error[i] ?? ""]));
      }
    });
    return found;
  }

  // A cell that begins like a formula would be run by a spreadsheet (OWASP, CSV injection).
  const cell = (value) => {
    let text = String(value ?? "");
    const isNumber = /^[+-]?\d+(\.\d*)?(e[+-]?\d+)?$/i.test(text);
    if (!isNumber && /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/.test(text)) text = `'${text}`;
    return /[",;\t\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  for (const button of document.querySelectorAll("button.csv")) {
    button.addEventListener("click", () => {
      const figure = document.getElementById(button.dataset.figure);
      refresh(figure);
      const text = rows(figure).map((row) => row.map(cell).join(",")).join("\r\n");
      download(new Blob([`${text}\r\n`], { type: "text/csv" }), `${figure.id}.csv`);
    });
  }

  function download(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // A figure with its title and caption under it, black on white.
  async function asPicture(figure) {
    refresh(figure);
    const place = placeOf(figure);
    let picture = place.querySelector(".panel:not([hidden]) canvas");
    if (!picture) {
      picture = new Image();
      const { width, height } = place._fullLayout;
      picture.src = await Plotly.toImage(place, { format: "png", scale: 2, width, height });
      await picture.decode();
    }
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("2d");
    const font = (size) => (context.font = `${size}px sans-serif`);
    canvas.width = Math.max(picture.width, 900);
    font(24);
    const lines = [""];
    for (const word of place.dataset.label.split(" ")) {
      if (context.measureText(`${lines.at(-1)} ${word}`).width > canvas.width - 40) lines.push("");
      lines.push(`${lines.pop()} ${word}`.trim());
    }
    canvas.height = picture.height + 32 * (lines.length + 1);
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(picture, 0, 0);
    font(24);
    context.fillStyle = "#1d2126";
    lines.forEach((line, i) => context.fillText(line, 20, picture.height + 32 * (i + 1)));
    return new Promise((done) => canvas.toBlob(done));
  }
  for (const button of document.querySelectorAll("button.copy"))
    button.addEventListener("click", async () => {
      const picture = await asPicture(document.getElementById(button.dataset.figure));
      try {
        await navigator.clipboard.write([new ClipboardItem({ "image/png": picture })]);
        button.firstChild.textContent = "Copied";
      } catch {
        download(picture, `${button.dataset.figure}.png`); // where the browser gives no clipboard
      }
    });

  // What is folded stays folded on paper. Two figures share a row, but for those that need its width.
  const plots = () => [...document.querySelectorAll(".js-plotly-plot")].filter((plot) => plot.checkVisibility());
  const needs = (plot) => plot._fullLayout.meta?.least > PRINT_WIDTH;
  const size = (plot) => {
    const height = plot._fullLayout.height;
    const zoomed = PRINT_ZOOMED[plot.closest("figure").id];
    if (zoomed) return { width: zoomed, height };
    const most = plot.closest(".beside") ? PRINT_PAIR_HEIGHT : PRINT_HEIGHT;
    return { width: needs(plot) ? 2 * PRINT_WIDTH : PRINT_WIDTH, height: Math.min(height, most) };
  };
  addEventListener("beforeprint", () => {
    figures.filter((figure) => figure.checkVisibility()).forEach(refresh);
    for (const plot of plots()) {
      plot.dataset.height = plot._fullLayout.height;
      plot.closest("figure").classList.toggle("whole", needs(plot));
      Plotly.relayout(plot, size(plot));
    }
  });
  addEventListener("afterprint", () => {
    for (const plot of plots()) Plotly.relayout(plot, { width: null, autosize: true, height: Number(plot.dataset.height) });
  });
})();
