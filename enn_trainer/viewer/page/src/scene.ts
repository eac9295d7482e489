/** The scene: entities where they are, on a canvas. */

import { styled } from "./dom.js";
import { extentOf, fitted, nearest, outline, panned, toPixel, toWorld, zoomed } from "./geometry.js";
import type { Box, Camera, Extent, Point } from "./geometry.js";
import { influenceOn } from "./inspector.js";
import type { Shown } from "./main.js";
import { attentionWeight, strongest, type Entity } from "./model.js";
import { SHAPES, colorOf, headingOf, labelOf, placeOf, valueOf, type View } from "./view.js";

// Told apart with all kinds of colour vision (Okabe and Ito), for a light and a dark page.
const LIGHT = ["#0072b2", "#d55e00", "#007a5a", "#a8478a", "#8a6d00", "#3a3a3a", "#2a8fc7", "#a13d00"];
const DARK = ["#56b4e9", "#ff9d5c", "#3fd1a4", "#e69bcb", "#f0e442", "#d0d0d0", "#8fd0f5", "#ffb98a"];

const COLORS = ["ink", "faint", "grid", "paper", "accent", "from", "to"] as const;
type Colors = Record<(typeof COLORS)[number], string>;

/** A view of two axes; the extent is that of all frames seen so far, unless the camera is the reader's own. */
type Pane = { axes: [number, number]; box: Box; camera: Camera | null; extent: Extent | null; isOwn: boolean };

/** How a path is drawn. */
type Style = { fill?: string; stroke?: string; width?: number; alpha?: number };

export class Scene {
  private panes: Pane[];
  private shown: Shown | null = null;
  private places: (number[] | null)[] = [];
  private context: CanvasRenderingContext2D;
  private colors = {} as Colors;
  /** Size of the canvas in the last layout: while other parts are rebuilt it is another one. */
  private size = [0, 0];

  constructor(
    private canvas: HTMLCanvasElement,
    private view: View,
    private onSelect: (position: number | null) => void,
    private onMove: (position: number, place: number[]) => void,
  ) {
    this.context = canvas.getContext("2d")!;
    const dimensions = Math.max(...view.types.map(({ position }) => position.length));
    const axes: [number, number][] = dimensions >= 3 ? [[0, 1], [0, 2]] : [[0, 1]]; // prettier-ignore
    this.panes = axes.map((pair) => {
      const bounds = pair.map((axis) => view.bounds?.[axis]);
      const extent = bounds.includes(undefined) ? null : (bounds.flat() as Extent);
      return { axes: pair, box: { x: 0, y: 0, width: 1, height: 1 }, camera: null, extent, isOwn: false };
    });
    this.listen();
  }

  /** True if anything of the world has a position. */
  static isFor(view: View): boolean {
    return view.types.some(({ position }) => position.length > 0);
  }

  show(shown: Shown | null): void {
    this.shown = shown;
    this.places = (shown?.frame.all ?? []).map((entity) => placeOf(this.view, entity));
    if (!this.view.bounds) this.include(this.places);
    this.draw();
  }

  /** Let the scene be wide enough for some places. */
  include(places: (number[] | null)[]): void {
    for (const pane of this.panes)
      pane.extent = extentOf(places.filter((place) => place !== null).map((place) => inPane(pane, place)), pane.extent);
  }

  /** Show all of the world again. */
  reset(): void {
    for (const pane of this.panes) pane.isOwn = false;
    this.draw();
  }

  zoom(factor: number): void {
    this.moveAll((camera, { x, y, width, height }) => zoomed(camera, factor, [x + width / 2, y + height / 2]));
  }

  pan(dx: number, dy: number): void {
    this.moveAll((camera) => panned(camera, dx, dy));
  }

  private moveAll(change: (camera: Camera, box: Box) => Camera): void {
    for (const pane of this.panes) move(pane, (camera) => change(camera, pane.box));
    this.draw();
  }

  draw(): void {
    const { canvas, context, shown } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = this.size;
    if (!width || !height) return;
    const [columns, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.colors = Object.fromEntries(COLORS.map((name) => [name, styled(name)])) as Colors;
    this.panes.forEach((pane, i) => {
      const share = width / this.panes.length;
      pane.box = { x: i * share, y: 0, width: share, height };
      if (!pane.extent) return;
      if (!pane.isOwn || !pane.camera) pane.camera = fitted(pane.extent, pane.box, this.view.isDown);
      const place = shown?.toggles.follow && shown.selected !== null ? this.places[shown.selected] : null;
      if (place) {
        const [x, y] = toPixel(pane.camera, inPane(pane, place));
        move(pane, (camera) => panned(camera, pane.box.x + share / 2 - x, height / 2 - y));
      }
      context.save();
      context.beginPath();
      context.rect(pane.box.x, 0, share, height);
      context.clip();
      this.drawPane(pane, pane.camera);
      context.restore();
      if (i) this.line([pane.box.x, 0], [pane.box.x, height], this.colors.grid, 1);
    });
  }

  private drawPane(pane: Pane, camera: Camera): void {
    const { shown, context, colors } = this;
    this.drawAxes(pane, camera);
    if (!shown) return;
    const { frame: { all }, selected, toggles } = shown; // prettier-ignore
    const points = this.places.map((place) => place && toPixel(camera, inPane(pane, place)));
    const isCrowd = all.length > 60;
    const radius = Math.min(Math.max(camera.scale * 0.38, all.length > 200 ? 4 : isCrowd ? 5.5 : 7), 14);
    const radiusOf = (entity: Entity) => {
      const { size } = this.view.types[entity.type];
      const half = typeof size === "object" && size ? Number(valueOf(size, entity)) : (size ?? NaN);
      return Number.isFinite(half) ? Math.min(Math.max(camera.scale * half, 4), 80) : radius;
    };

    // Trails, below everything else.
    for (const [key, places] of shown.trails) {
      const entity = all.find((one) => one.key === key);
      const stroke = entity ? this.colorOf(entity) : colors.faint;
      const corners = places.map((place) => toPixel(camera, inPane(pane, place)));
      this.path({ stroke, width: 1.5, alpha: 0.5 }, () => corners.forEach((corner) => context.lineTo(...corner)));
    }
    if (toggles.influence) this.drawInfluence(shown, points, radius);

    // Entities: the last ones above the others.
    for (const entity of all) {
      const point = points[entity.position];
      if (point) this.drawEntity(entity, point, radiusOf(entity), camera.flip);
    }
    this.drawSelections(shown, points);
    if (toggles.attention && selected !== null) this.drawAttention(shown, points, selected);

    // Labels, and a ring around the selected one.
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (const entity of all) {
      const point = points[entity.position];
      const isSelected = entity.position === selected;
      if (!point) continue;
      const reach = radiusOf(entity);
      if (isSelected) this.circle(point, reach + 5, { stroke: colors.ink, width: 2 });
      if (shown.lit.includes(entity.position)) this.circle(point, reach + 2.5, { stroke: colors.accent, width: 3 });
      const label = labelOf(this.view, entity);
      if (!isSelected && (isCrowd || !(toggles.labels || label !== entity.name))) continue;
      Object.assign(context, { lineWidth: 3, strokeStyle: colors.paper, fillStyle: colors.ink });
      const text = [label.slice(0, 40), point[0], point[1] - reach - 6] as const;
      context.strokeText(...text);
      context.fillText(...text);
    }
  }

  private drawAxes({ box, axes }: Pane, camera: Camera): void {
    const { context, colors } = this;
    const [right, bottom] = [box.x + box.width, box.height];
    const step = niceStep(70 / camera.scale);
    Object.assign(context, { font: "10px system-ui, sans-serif", textAlign: "left", fillStyle: colors.faint });
    const low = (box.x - camera.offsetX) / camera.scale;
    for (let x = Math.ceil(low / step) * step; ; x += step) {
      const [px] = toPixel(camera, [x, 0]);
      if (px > right) break;
      this.line([px, 0], [px, bottom], colors.grid, 1);
      if (px < right - 70) context.fillText(String(+x.toPrecision(6)), px + 3, bottom - 4);
    }
    const ends = [-camera.offsetY, bottom - camera.offsetY].map((y) => (camera.flip * y) / camera.scale);
    for (let y = Math.ceil(Math.min(...ends) / step) * step; y <= Math.max(...ends); y += step) {
      const [, py] = toPixel(camera, [0, y]);
      this.line([box.x, py], [right, py], colors.grid, 1);
      context.fillText(String(+y.toPrecision(6)), box.x + 4, py - 3);
    }
    const [x, y] = axes.map((axis) => this.view.axes[axis] ?? "");
    context.fillText(`${y} ${this.view.isDown ? "↓" : "↑"}`, box.x + 4, 12);
    context.textAlign = "right";
    context.fillText(`${x} →`, right - 6, bottom - 4);
  }

  private colorOf(entity: Entity): string {
    return shade(colorOf(this.view.types[entity.type], entity));
  }

  private drawEntity(entity: Entity, [x, y]: Point, radius: number, flip: number): void {
    const view = this.view.types[entity.type];
    const color = this.colorOf(entity);
    // Hollow: hidden from the policy, or of a type that it does not know.
    const style = entity.isVisible && entity.isSeen ? { fill: color, stroke: this.colors.paper } : { stroke: color, width: 2 };
    const corners = outline(SHAPES[view.shape]);
    this.path(style, () => {
      if (!corners.length) this.context.arc(x, y, radius, 0, 2 * Math.PI);
      for (const [dx, dy] of corners) this.context.lineTo(x + radius * dx, y + radius * dy);
      this.context.closePath();
    });
    const angle = headingOf(view, entity);
    const reach = Math.max(2 * radius, 12);
    const tip: Point = [x + reach * Math.cos(angle), y + flip * reach * Math.sin(angle)];
    if (Number.isFinite(angle)) this.line([x, y], tip, this.colors.ink, 2);
  }

  /** Lines from actors to the entities that they select, as thick as these are probable. */
  private drawSelections({ frame: { decisions }, selected }: Shown, points: (Point | null)[]): void {
    for (const { actor, choices } of decisions) {
      const from = points[actor];
      if (!from || (selected !== null && actor !== selected)) continue;
      for (const { target, probability, isChosen, isAdvised } of choices) {
        const to = target === null ? null : points[target];
        if (!to || target === actor || !(isChosen || isAdvised || (selected !== null && probability > 0.005))) continue;
        const width = Number.isFinite(probability) ? 0.5 + 6 * probability : 2;
        this.arrow(from, to, isChosen ? this.colors.accent : this.colors.faint, selected === null ? 1.2 : width);
      }
    }
  }

  private drawAttention({ frame: { attention }, heads: [layer, head] }: Shown, points: (Point | null)[], selected: number): void {
    const center = points[selected];
    if (!attention || !center || selected >= attention.size) return;
    const others = [...points.keys()].filter((i) => points[i] && i !== selected && i < attention.size);
    for (const isFrom of [true, false]) {
      const weights = others.map((i) => {
        const [from, to] = isFrom ? [selected, i] : [i, selected];
        return attentionWeight(attention, layer, head, from, to);
      });
      const most = Math.max(...weights, 1e-9);
      for (const k of strongest(weights)) {
        const i = others[k];
        const share = weights[k] / most;
        const [[x0, y0], [x1, y1]] = [center, points[i]!];
        const bend = isFrom ? 0.12 : -0.12;
        const middle: Point = [(x0 + x1) / 2 + bend * (y1 - y0), (y0 + y1) / 2 - bend * (x1 - x0)];
        const style = { stroke: isFrom ? this.colors.from : this.colors.to, width: 0.5 + 3.5 * share, alpha: 0.15 + 0.75 * share };
        if (!(share > 0.04)) break;
        this.path(style, () => {
          this.context.moveTo(x0, y0);
          this.context.quadraticCurveTo(...middle, x1, y1);
        });
      }
    }
  }

  /** Halos around the entities without which choices, or the value, would be others. */
  private drawInfluence({ frame, selected }: Shown, points: (Point | null)[], radius: number): void {
    const { influence } = frame;
    if (!influence) return;
    const strengths = selected === null ? influence.values.map(Math.abs) : influenceOn(frame, selected);
    const most = selected === null ? Math.max(...strengths, 1e-9) : 1;
    influence.entities.forEach((position, i) => {
      const point = points[position];
      const share = Math.min(strengths[i] / most, 1);
      if (!point || !(share > 0.02)) return;
      this.circle(point, radius * (1.4 + 1.2 * share), { fill: this.colors.accent, alpha: 0.15 + 0.5 * share });
    });
  }

  private path({ fill, stroke, width = 1, alpha = 1 }: Style, draw: () => void): void {
    const { context } = this;
    context.globalAlpha = alpha;
    context.beginPath();
    draw();
    if (fill) Object.assign(context, { fillStyle: fill }).fill();
    if (stroke) Object.assign(context, { strokeStyle: stroke, lineWidth: width }).stroke();
    context.globalAlpha = 1;
  }

  private circle([x, y]: Point, radius: number, style: Style): void {
    this.path(style, () => this.context.arc(x, y, radius, 0, 2 * Math.PI));
  }

  private line(from: Point, to: Point, stroke: string, width: number): void {
    this.path({ stroke, width }, () => {
      this.context.moveTo(...from);
      this.context.lineTo(...to);
    });
  }

  private arrow(from: Point, to: Point, color: string, width: number): void {
    this.line(from, to, color, width);
    const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
    const reach = 5 + 1.5 * width;
    const barbs = [-0.4, 0.4].map((turn): Point => [to[0] - reach * Math.cos(angle + turn), to[1] - reach * Math.sin(angle + turn)]);
    this.path({ fill: color }, () => [to, ...barbs].forEach((corner) => this.context.lineTo(...corner)));
  }

  private listen(): void {
    const { canvas } = this;
    let last: Point | null = null;
    let isDrag = false;
    let dragged = -1;
    const at = (event: MouseEvent): Point => [event.offsetX, event.offsetY];
    const paneAt = ([x]: Point) => this.panes.find(({ box }) => x < box.x + box.width) ?? this.panes[0];
    const found = (point: Point) => {
      const pane = paneAt(point);
      const points = this.places.map((place) => place && pane.camera && toPixel(pane.camera, inPane(pane, place)));
      return nearest(points, point, 18);
    };
    canvas.addEventListener("pointerdown", (event) => {
      last = at(event);
      isDrag = false;
      dragged = this.shown?.edit ? found(last) : -1;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      const [dx, dy] = [event.offsetX - last[0], event.offsetY - last[1]];
      if (!isDrag && Math.hypot(dx, dy) < 4) return;
      isDrag = true;
      const pane = paneAt(last);
      if (dragged < 0) move(pane, (camera) => panned(camera, dx, dy));
      else if (pane.camera) this.places[dragged] = placed(pane, this.places[dragged]!, toWorld(pane.camera, at(event)));
      last = at(event);
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const position = found(at(event));
      if (last && !isDrag) this.onSelect(position < 0 ? null : position);
      if (last && isDrag && dragged >= 0) this.onMove(dragged, this.places[dragged]!);
      last = null;
    });
    canvas.addEventListener("dblclick", () => this.reset());
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      move(paneAt(at(event)), (camera) => zoomed(camera, Math.exp(-event.deltaY / 400), at(event)));
      this.draw();
    };
    canvas.addEventListener("wheel", wheel, { passive: false });
    const resize = () => {
      this.size = [canvas.clientWidth, canvas.clientHeight];
      this.draw();
    };
    new ResizeObserver(resize).observe(canvas);
    resize();
  }
}

/** Return the coordinates of a place that a pane shows. */
const inPane = ({ axes }: Pane, place: number[]): Point => [place[axes[0]], place[axes[1]] ?? 0];

/** Return a place with the coordinates that a pane shows at a point. */
function placed({ axes }: Pane, place: number[], point: Point): number[] {
  return place.map((value, axis) => point[axes.indexOf(axis)] ?? value);
}

/** Let a pane show another part of the world, if it shows one. */
function move(pane: Pane, change: (camera: Camera) => Camera): void {
  if (!pane.camera) return;
  pane.camera = change(pane.camera);
  pane.isOwn = true;
}

/** Return 1, 2 or 5 times a power of ten, at least `least`. */
export function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * 0.999)!;
}

/** Return a colour, or that of a place in the palette. */
export function shade(color: string | number): string {
  return typeof color === "string" ? color : (styled("dark") === "1" ? DARK : LIGHT)[color % LIGHT.length];
}
