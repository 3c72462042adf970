// Draws the charts of a report. The text and the tables are in the page already; the colours are those of
// the style sheet, so that both change together.
"use strict";

(() => {
  const root = document.documentElement;
  const { curves, heat_maps: heatMaps } = JSON.parse(document.getElementById("data").textContent);

  const viridis = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
  // An A4 page's width between the margins. Charts have to be drawn before the browser lays out the paper.
  const paperWidth = 640;
  // A finger that drags over a chart wants to scroll the page.
  const touch = matchMedia("(pointer: coarse)").matches;

  const unique = (values) => [...new Set(values)];
  const arms = unique(curves.flatMap((chart) => chart.series.map((series) => series.arm)));

  // Plotly reads tags and entities in its labels.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const shown = (value) =>
    Number.isInteger(value) ? value.toLocaleString("en-US") : String(Number(value.toPrecision(3)));

  // Black or white, whichever is easier to read on the colour of viridis at `share` of the scale.
  function inkOn(share) {
    const at = share * (viridis.length - 1);
    const [low, high] = [viridis[Math.floor(at)], viridis[Math.ceil(at)]];
    const luminance = [[1, 0.2126], [3, 0.7152], [5, 0.0722]].reduce((sum, [digit, weight]) => {
      const channel = (colour) => parseInt(colour.slice(digit, digit + 2), 16) / 255;
      const mixed = channel(low) + (at % 1) * (channel(high) - channel(low));
      return sum + weight * (mixed <= 0.04045 ? mixed / 12.92 : ((mixed + 0.055) / 1.055) ** 2.4);
    }, 0);
    return luminance > 0.179 ? "#000000" : "#ffffff";
  }

  function element(tag, className, ...children) {
    const made = document.createElement(tag);
    made.className = className;
    made.append(...children);
    return made;
  }

  function theme() {
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const armColours = colour("arms").split(",").map((text) => text.trim());
    return {
      panel: colour("panel"), text: colour("text"), muted: colour("muted"), grid: colour("grid"), line: colour("line"),
      empty: colour("empty"),
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("muted") },
      // More arms than colours: a second round, dashed.
      arm(name) {
        const index = arms.indexOf(name);
        return { color: armColours[index % armColours.length], dash: index < armColours.length ? "solid" : "dash" };
      },
    };
  }

  function layout(look, more) {
    return {
      autosize: true,
      paper_bgcolor: look.panel,
      plot_bgcolor: look.panel,
      font: look.font,
      showlegend: false,
      hoverlabel: { bgcolor: look.panel, bordercolor: look.line, font: { ...look.font, color: look.text }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: look.muted, activecolor: look.text },
      uirevision: "a change of colours is no reason to lose the zoom",
      ...more,
    };
  }

  // The median and the range over the seeds, at the steps that all of them have: over fewer it would be
  // another quantity, and jump where a run ends.
  function overSeeds(runs) {
    const values = runs.map(({ x, y }) => new Map(x.map((step, i) => [step, y[i]])));
    const steps = runs[0].x.filter((step) => values.every((run) => run.has(step)));
    const sorted = steps.map((step) => {
      const here = values.map((run) => run.get(step));
      return here.includes(null) ? null : here.sort((a, b) => a - b);
    });
    const middle = (of) => (of[(of.length - 1) >> 1] + of[of.length >> 1]) / 2;
    return { steps, sorted, median: sorted.map((of) => of && middle(of)) };
  }

  // One outline for each stretch without gaps.
  function bandOutline({ steps, sorted }) {
    const x = [];
    const y = [];
    for (let from = 0; from < steps.length; ++from) {
      if (!sorted[from]) continue;
      let to = from;
      while (to + 1 < steps.length && sorted[to + 1]) ++to;
      const stretch = steps.slice(from, to + 1);
      const inside = sorted.slice(from, to + 1);
      if (x.length) {
        x.push(null);
        y.push(null);
      }
      x.push(...stretch, ...stretch.toReversed());
      y.push(...inside.map((of) => of.at(-1)), ...inside.map((of) => of[0]).reverse());
      from = to;
    }
    return { x, y };
  }

  function curveTraces(chart, hidden, look) {
    const bands = [];
    const seeds = [];
    const bold = [];
    const hover = `%{meta}<br>${plain(chart.x)} %{x:,}: %{y:.4~g}<extra></extra>`;
    for (const arm of unique(chart.series.map((series) => series.arm))) {
      const runs = chart.series
        .filter((series) => series.arm === arm)
        // A log axis has no place for zero.
        .map((series) => ({ ...series, y: chart.log_y ? series.y.map((y) => (y > 0 ? y : null)) : series.y }));
      const { color, dash } = look.arm(arm);
      const common = { type: "scatter", legendgroup: arm, name: plain(arm), showlegend: false, visible: !hidden.has(arm) };
      const few = Math.max(...runs.map((run) => run.x.length)) < 30;
      const line = { ...common, mode: few ? "lines+markers" : "lines", marker: { size: 4, color }, hovertemplate: hover };
      const alone = runs.length === 1;
      for (const run of runs) {
        (alone ? bold : seeds).push({
          ...line, x: run.x, y: run.y, meta: `<b>${plain(arm)}</b>, seed ${run.seed}`, showlegend: alone,
          line: alone ? { color, dash, width: 2.5 } : { color, dash, width: 1 }, opacity: alone ? 1 : 0.5,
        });
      }
      if (alone) continue;
      const summary = overSeeds(runs);
      bands.push({ ...common, ...bandOutline(summary), mode: "none", fill: "toself", fillcolor: `${color}2b`, hoverinfo: "skip" });
      bold.push({
        ...line, x: summary.steps, y: summary.median, meta: `<b>${plain(arm)}</b>, median of ${runs.length} seeds`,
        showlegend: true, line: { color, dash, width: 2.5 },
      });
    }
    return [...bands, ...seeds, ...bold];
  }

  function curveFigure(chart, hidden, look) {
    const axis = { gridcolor: look.grid, linecolor: look.line, zerolinecolor: look.line, automargin: true, fixedrange: touch };
    return {
      data: curveTraces(chart, hidden, look),
      layout: layout(look, {
        margin: { l: 8, r: 12, t: 28, b: 8 },
        hovermode: "closest",
        dragmode: touch ? false : "zoom",
        xaxis: { ...axis, title: { text: plain(chart.x) } },
        yaxis: {
          ...axis, title: { text: plain(chart.y) }, type: chart.log_y ? "log" : "linear",
          exponentformat: chart.log_y ? "power" : "none",
        },
      }),
    };
  }

  // The picture has no legend of the page's beside it, so it takes one of its own.
  function savePicture(plot, title) {
    const picture = {
      data: plot.data,
      layout: { ...plot.layout, title: { text: plain(title) }, showlegend: true, margin: { l: 60, r: 20, t: 60, b: 50 } },
    };
    Plotly.downloadImage(picture, { format: "png", width: 1000, height: 560, scale: 2, filename: title });
  }

  function addCurves(chart, place) {
    const hidden = new Set();
    const legend = element("div", "legend");
    const plot = element("div", "plot");
    const figure = element("figure", "curves", element("figcaption", "", chart.title), legend, plot);
    const drawn = { plot, figure: (look) => curveFigure(chart, hidden, look) };
    const names = unique(chart.series.map((series) => series.arm));

    const swatches = names.map((arm) => {
      const swatch = element("i", "");
      const button = element("button", "", swatch, arm);
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const show = hidden.delete(arm);
        if (!show) hidden.add(arm);
        button.setAttribute("aria-pressed", String(show));
        draw([drawn]);
      });
      legend.append(button);
      return { arm, swatch };
    });
    drawn.recolour = (look) => {
      for (const { arm, swatch } of swatches) {
        const { color, dash } = look.arm(arm);
        swatch.style.borderTopColor = color;
        swatch.style.borderTopStyle = dash === "dash" ? "dashed" : "solid";
      }
    };

    const invisible = names.filter(
      (arm) => !chart.series.some((series) => series.arm === arm && series.y.some((y) => (chart.log_y ? y > 0 : y !== null))));
    if (invisible.length) {
      const reason = chart.log_y ? "no value above zero, which a log axis needs" : "no finite value";
      figure.append(element("p", "chart-note", `Not drawn: ${invisible.join(", ")} (${reason}).`));
    }
    drawn.config = {
      modeBarButtons: [[
        { name: "save", title: "Save as PNG", icon: Plotly.Icons.camera, click: () => savePicture(plot, chart.title) },
        "resetScale2d",
      ]],
    };
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${chart.title}: ${chart.y} over ${chart.x}, for ${names.join(", ")}`);
    place.append(figure);
    return [drawn];
  }

  function heatFigure(map, panel, range, look) {
    // Said, because Plotly does not take them from a panel without any value.
    const axis = (title, settings) => ({
      type: "category", categoryorder: "array", categoryarray: settings, range: [-0.5, settings.length - 0.5],
      automargin: true, fixedrange: true, ticks: "", showgrid: false, zeroline: false,
      title: { text: plain(title) },
    });
    const [low, high] = range;
    const numbers = panel.z.flatMap((row, i) => row.flatMap((z, j) => (z === null ? [] : {
      x: j, y: i, text: shown(z), showarrow: false,
      font: { size: 13, color: inkOn(high > low ? (z - low) / (high - low) : 0.5) },
    })));
    return {
      data: [{
        type: "heatmap", x: panel.x, y: panel.y, z: panel.z, zmin: low, zmax: high, showscale: false,
        colorscale: viridis.map((colour, i) => [i / (viridis.length - 1), colour]),
        xgap: 2, ygap: 2, hoverongaps: false,
        text: panel.z.map((row) => row.map((z) => (z === null ? "" : shown(z)))),
        hovertemplate: `${plain(map.x)} %{x}<br>${plain(map.y)} %{y}<br>${plain(map.z)} %{text}<extra></extra>`,
      }],
      layout: layout(look, {
        height: 52 * panel.y.length + 110,
        margin: { l: 8, r: 8, t: 36, b: 8 },
        plot_bgcolor: look.empty,
        title: { text: plain(panel.arm), font: { size: 14, color: look.text }, x: 0.5, y: 0.97, yanchor: "top" },
        dragmode: false,
        annotations: numbers,
        xaxis: axis(map.x, panel.x),
        yaxis: axis(map.y, panel.y),
      }),
    };
  }

  function addHeatMap(map, place) {
    const cells = map.panels.flatMap((panel) => panel.z.flat());
    const values = cells.filter((z) => z !== null);
    const range = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const panels = element("div", "panels");
    const figure = element("figure", "", element("figcaption", "", map.title), panels);
    const scale = element("div", "scale", element("span", "", map.z));
    if (values.length) {
      const bar = element("span", "bar");
      bar.style.background = `linear-gradient(to right, ${viridis.join(", ")})`;
      scale.append(element("span", "", shown(range[0])), bar, element("span", "", shown(range[1])));
    }
    if (values.length < cells.length) scale.append(element("span", "empty", "no value"));
    figure.append(scale);
    place.append(figure);
    return map.panels.map((panel) => {
      const plot = element("div", "plot");
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", `${map.title}, ${panel.arm}: ${map.z} over ${map.x} and ${map.y}`);
      panels.append(plot);
      return {
        plot, figure: (look) => heatFigure(map, panel, range, look), recolour() {},
        config: { modeBarButtons: [["toImage"]] },
      };
    });
  }

  // print_report.py and the tests wait for data-charts="drawn".
  async function draw(charts, paper = false) {
    root.dataset.charts = "drawing";
    const look = theme();
    const drawing = charts.map(({ plot, figure, recolour, config }) => {
      recolour(look);
      const { data, layout: frame } = figure(look);
      if (paper) frame.width = plot.closest(".panels") ? paperWidth / 2 : paperWidth;
      return Plotly.react(plot, data, frame, { responsive: true, displaylogo: false, ...config });
    });
    await Promise.all(drawing);
    root.dataset.charts = "drawn";
  }

  const charts = [
    ...curves.flatMap((chart) => addCurves(chart, document.getElementById("curves"))),
    ...heatMaps.flatMap((map) => addHeatMap(map, document.getElementById("heat-maps"))),
  ];
  draw(charts);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(charts));
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    draw(charts, true);
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    draw(charts);
  });
})();
