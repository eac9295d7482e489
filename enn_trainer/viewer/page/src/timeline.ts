/** Curves over the steps of an episode, with a cursor that can be dragged. */

import uPlot from "uplot";
import { styled } from "./dom.js";
import { returnsSoFar, type Series } from "./model.js";

/** Distances of the marks below the curves, which count steps. */
const WHOLE = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000].flatMap((power) => [power, 2 * power, 5 * power]);

export class Curves {
  private plot: uPlot | null = null;
  private step = 0;

  // prettier-ignore
  constructor(private target: HTMLElement, private onStep: (step: number) => void) {
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(target);
  }

  /** Draw all curves of an episode again, over the numbers of its steps; there are no returns if some are left out. */
  show(series: Series, returns: ArrayLike<number>, numbers: number[] | undefined, hasBeside: boolean): void {
    const steps = numbers ?? [...series.reward.keys()];
    const [first, last] = [steps[0] ?? 0, steps.at(-1) ?? 0];
    const curves: [label: string, values: ArrayLike<number>, color: string, scale: string, dash?: number[]][] = [
      ["value", series.value, "c1", "y"],
      ["return to go", returns, "c2", "y"],
      ["return so far", numbers ? returns : returnsSoFar(series.reward), "c3", "y", [6, 3]],
      ["reward", series.reward, "c4", "y", [2, 2]],
      ["entropy, % of maximum", series.entropy, "c5", "%"],
    ];
    if (hasBeside) curves.push(["value, other agent", series.besideValue, "c6", "y", [8, 2, 2, 2]]);
    const axis = { stroke: styled("faint"), grid: { stroke: styled("grid"), width: 1 }, ticks: { stroke: styled("grid") } };
    const drag = (plot: uPlot) => {
      const seek = ({ buttons, clientX }: PointerEvent) => {
        if (buttons & 1) this.onStep(plot.posToIdx(clientX - plot.over.getBoundingClientRect().left));
      };
      for (const type of ["pointerdown", "pointermove"] as const) plot.over.addEventListener(type, seek);
    };
    const options: uPlot.Options = {
      ...this.size(),
      scales: { x: { time: false, range: [first, Math.max(last, first + 1)] }, "%": { range: [0, 100] } },
      axes: [{ ...axis, size: 28, incrs: WHOLE }, { ...axis, size: 46 }, { ...axis, scale: "%", side: 1, size: 40, grid: { show: false } }],
      cursor: { drag: { x: false, y: false }, y: false },
      series: [
        { label: "step" },
        ...curves.map(([label, , name, scale, dash]) => ({
          label,
          scale,
          dash,
          stroke: styled(name),
          width: 1.5,
          points: { show: steps.length < 3 },
          value: (_: uPlot, value: number | null | undefined) => value?.toPrecision(4) ?? "–",
        })),
      ],
      hooks: { draw: [(plot) => this.mark(plot, styled("ink"))], ready: [drag, (plot) => plot.setLegend({ idx: this.step }, false)] },
    };
    const data = [steps, ...curves.map(([, values]) => Array.from(values, (v) => (Number.isFinite(v) ? v : null)))];
    const hidden = this.plot?.series.map(({ show }) => show);
    this.plot?.destroy();
    options.series.forEach((one, i) => (one.show = hidden?.[i] ?? true));
    this.plot = new uPlot(options, data as uPlot.AlignedData, this.target);
  }

  seek(step: number): void {
    this.step = step;
    this.plot?.setLegend({ idx: step }, false);
    this.plot?.redraw(false);
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(this.target.clientWidth, 200), height: 130 };
  }

  private mark(plot: uPlot, color: string): void {
    const x = plot.valToPos(plot.data[0][this.step] ?? this.step, "x", true);
    const { ctx, bbox } = plot;
    ctx.fillStyle = color;
    ctx.fillRect(x - devicePixelRatio, bbox.top, 2 * devicePixelRatio, bbox.height);
  }
}
