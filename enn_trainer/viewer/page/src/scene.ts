/** The scene: entities where they are, on a canvas. */

import { extentOf, fitted, nearest, outline, panned, toPixel, zoomed } from "./geometry.js";
import type { Box, Camera, Extent, Point } from "./geometry.js";
import { attentionWeight } from "./model.js";
import type { Entity, Frame } from "./model.js";
import { SHAPES, colorOf, headingOf, placeOf, valueOf } from "./view.js";
import type { View } from "./view.js";
import { shown } from "./dom.js";

// Told apart with all kinds of colour vision (Okabe and Ito), for a light and a dark page.
const LIGHT = ["#0072b2", "#d55e00", "#007a5a", "#a8478a", "#8a6d00", "#3a3a3a", "#2a8fc7", "#a13d00"];
const DARK = ["#56b4e9", "#ff9d5c", "#3fd1a4", "#e69bcb", "#f0e442", "#d0d0d0", "#8fd0f5", "#ffb98a"];

export interface Overlay {
  selected: number | null;
  showsAttention: boolean;
  showsInfluence: boolean;
  showsLabels: boolean;
  layer: number;
  head: number;
  /** Earlier places of entities by key, oldest first. */
  trails: Map<string, number[][]>;
  follows: boolean;
}

interface Theme {
  ink: string;
  faint: string;
  grid: string;
  paper: string;
  accent: string;
  from: string;
  to: string;
  palette: string[];
}

interface Pane {
  axes: [number, number];
  box: Box;
  camera: Camera | null;
  /** Seen so far, of all frames. */
  extent: Extent | null;
  isOwn: boolean;
}

export class Scene {
  private panes: Pane[];
  private frame: Frame | null = null;
  private overlay: Overlay | null = null;
  private places: (number[] | null)[] = [];

  constructor(
    private canvas: HTMLCanvasElement,
    private view: View,
    private onSelect: (position: number | null) => void,
  ) {
    const dimensions = Math.max(...view.types.map(({ position }) => position.length));
    const axes: [number, number][] = dimensions >= 3 ? [[0, 1], [0, 2]] : [[0, 1]]; // prettier-ignore
    this.panes = axes.map((pair) => ({
      axes: pair,
      box: { x: 0, y: 0, width: 1, height: 1 },
      camera: null,
      extent: view.bounds && pair.every((axis) => view.bounds![axis])
        ? ([...view.bounds[pair[0]], ...view.bounds[pair[1]]] as Extent)
        : null,
      isOwn: false,
    }));
    this.listen();
  }

  /** True if anything of the world has a position. */
  static isFor(view: View): boolean {
    return view.types.some(({ position }) => position.length > 0);
  }

  colorOf(entity: Entity): string {
    return shade(colorOf(this.view.types[entity.type], entity));
  }

  show(frame: Frame | null, overlay: Overlay): void {
    this.frame = frame;
    this.overlay = overlay;
    const all = frame ? [...frame.entities, ...(frame.global ? [frame.global] : [])] : [];
    this.places = all.map((entity) => placeOf(this.view, entity));
    if (!this.view.bounds) this.include(this.places);
    this.draw();
  }

  /** Let the scene be wide enough for some places. */
  include(places: (number[] | null)[]): void {
    for (const pane of this.panes)
      pane.extent = extentOf(places.flatMap((place) => (place ? [this.point(pane, place)] : [])), pane.extent);
  }

  /** Show all of the world again. */
  reset(): void {
    for (const pane of this.panes) pane.isOwn = false;
    this.draw();
  }

  zoom(factor: number): void {
    for (const pane of this.panes) {
      const { x, y, width, height } = pane.box;
      if (pane.camera) this.move(pane, zoomed(pane.camera, factor, [x + width / 2, y + height / 2]));
    }
    this.draw();
  }

  pan(dx: number, dy: number): void {
    for (const pane of this.panes) if (pane.camera) this.move(pane, panned(pane.camera, dx, dy));
    this.draw();
  }

  draw(): void {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const colors = theme();
    this.panes.forEach((pane, i) => {
      const share = width / this.panes.length;
      pane.box = { x: i * share, y: 0, width: share, height };
      if (!pane.extent) return;
      if (!pane.isOwn || !pane.camera) pane.camera = fitted(pane.extent, pane.box, this.view.isDown);
      if (this.overlay?.follows && this.overlay.selected !== null) this.center(pane, this.overlay.selected);
      context.save();
      context.beginPath();
      context.rect(pane.box.x, 0, share, height);
      context.clip();
      this.drawPane(context, pane, pane.camera, colors);
      context.restore();
      if (i) line(context, [pane.box.x, 0], [pane.box.x, height], colors.grid, 1);
    });
  }

  private drawPane(context: CanvasRenderingContext2D, pane: Pane, camera: Camera, colors: Theme): void {
    const { frame, overlay } = this;
    this.drawAxes(context, pane, camera, colors);
    if (!frame || !overlay) return;
    const points = this.places.map((place) => place && toPixel(camera, this.point(pane, place)));
    const all = [...frame.entities, ...(frame.global ? [frame.global] : [])];
    const least = all.length > 200 ? 4 : all.length > 60 ? 5.5 : 7;
    const radius = Math.min(Math.max(camera.scale * 0.38, least), 14);

    // Trails, below everything else.
    for (const [key, places] of overlay.trails) {
      const entity = all.find((one) => one.key === key);
      context.strokeStyle = entity ? this.colorOf(entity) : colors.faint;
      context.globalAlpha = 0.5;
      context.lineWidth = 1.5;
      context.beginPath();
      places.forEach((place, i) => {
        const [x, y] = toPixel(camera, this.point(pane, place));
        if (i) context.lineTo(x, y);
        else context.moveTo(x, y);
      });
      context.stroke();
      context.globalAlpha = 1;
    }
    if (overlay.showsInfluence) this.drawInfluence(context, points, radius, colors);

    // Entities: the last ones above the others.
    for (const entity of all) {
      const point = points[entity.position];
      if (point) this.drawEntity(context, entity, point, this.radiusOf(entity, camera, radius), camera.flip, colors);
    }
    this.drawSelections(context, points, colors);
    if (overlay.showsAttention && overlay.selected !== null) this.drawAttention(context, points, overlay.selected, colors);

    // Labels, and a ring around the selected one.
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (const entity of all) {
      const point = points[entity.position];
      const isSelected = entity.position === overlay.selected;
      if (!point) continue;
      const reach = this.radiusOf(entity, camera, radius);
      if (isSelected) ring(context, point, reach + 5, colors.ink, 2);
      const label = this.labelOf(entity);
      if (isSelected || (overlay.showsLabels && all.length <= 60) || (label !== entity.name && all.length <= 60)) {
        context.lineWidth = 3;
        context.strokeStyle = colors.paper;
        context.fillStyle = colors.ink;
        const text = label.slice(0, 40);
        context.strokeText(text, point[0], point[1] - reach - 6);
        context.fillText(text, point[0], point[1] - reach - 6);
      }
    }
  }

  private labelOf(entity: Entity): string {
    const parts = this.view.types[entity.type].label.map((feature) => valueOf(feature, entity));
    return parts.map((value) => (typeof value === "number" ? shown(value) : value)).join(" ") || entity.name;
  }

  private radiusOf(entity: Entity, camera: Camera, usual: number): number {
    const { size } = this.view.types[entity.type];
    const half = typeof size === "object" && size ? Number(valueOf(size, entity)) : (size ?? NaN);
    return Number.isFinite(half) ? Math.min(Math.max(camera.scale * half, 4), 80) : usual;
  }

  private drawAxes(context: CanvasRenderingContext2D, pane: Pane, camera: Camera, colors: Theme): void {
    const { box } = pane;
    const step = niceStep(70 / camera.scale);
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "left";
    context.fillStyle = colors.faint;
    const low = (box.x - camera.offsetX) / camera.scale;
    for (let x = Math.ceil(low / step) * step; ; x += step) {
      const [px] = toPixel(camera, [x, 0]);
      if (px > box.x + box.width) break;
      line(context, [px, 0], [px, box.height], colors.grid, 1);
      if (px < box.x + box.width - 70) context.fillText(String(+x.toPrecision(6)), px + 3, box.height - 4);
    }
    const ends = [-camera.offsetY, box.height - camera.offsetY].map((y) => (camera.flip * y) / camera.scale);
    for (let y = Math.ceil(Math.min(...ends) / step) * step; y <= Math.max(...ends); y += step) {
      const [, py] = toPixel(camera, [0, y]);
      line(context, [box.x, py], [box.x + box.width, py], colors.grid, 1);
      context.fillText(String(+y.toPrecision(6)), box.x + 4, py - 3);
    }
    const [x, y] = pane.axes.map((axis) => this.view.axes[axis] ?? "");
    context.textAlign = "right";
    context.fillText(`${x} →`, box.x + box.width - 6, box.height - 4);
    context.textAlign = "left";
    context.fillText(`${y} ${this.view.isDown ? "↓" : "↑"}`, box.x + 4, 12);
  }

  private drawEntity(
    context: CanvasRenderingContext2D,
    entity: Entity,
    [x, y]: Point,
    radius: number,
    flip: number,
    colors: Theme,
  ): void {
    const view = this.view.types[entity.type];
    const { shape } = view;
    const corners = outline(SHAPES[shape]);
    context.beginPath();
    if (corners.length) {
      corners.forEach(([dx, dy]) => context.lineTo(x + radius * dx, y + radius * dy));
      context.closePath();
    } else {
      context.arc(x, y, radius, 0, 2 * Math.PI);
    }
    const color = this.colorOf(entity);
    if (entity.isVisible) {
      context.fillStyle = color;
      context.fill();
      context.strokeStyle = colors.paper;
      context.lineWidth = 1;
    } else {
      context.strokeStyle = color; // hollow: hidden from the policy
      context.lineWidth = 2;
    }
    context.stroke();
    const angle = headingOf(view, entity);
    if (Number.isFinite(angle)) {
      const reach = Math.max(2 * radius, 12);
      const tip: Point = [x + reach * Math.cos(angle), y + flip * reach * Math.sin(angle)];
      line(context, [x, y], tip, colors.ink, 2);
    }
  }

  /** Lines from actors to the entities that they select, as thick as these are probable. */
  private drawSelections(context: CanvasRenderingContext2D, points: (Point | null)[], colors: Theme): void {
    const selected = this.overlay!.selected;
    for (const { actor, choices } of this.frame!.decisions) {
      const from = points[actor];
      if (!from || (selected !== null && actor !== selected)) continue;
      for (const { target, probability, isChosen } of choices) {
        const to = target === null ? null : points[target];
        if (!to || target === actor || !(isChosen || (selected !== null && probability > 0.005))) continue;
        const width = Number.isFinite(probability) ? 0.5 + 6 * probability : 2;
        arrow(context, from, to, isChosen ? colors.accent : colors.faint, selected === null ? 1.2 : width);
      }
    }
  }

  private drawAttention(context: CanvasRenderingContext2D, points: (Point | null)[], selected: number, colors: Theme): void {
    const { attention } = this.frame!;
    const { layer, head } = this.overlay!;
    const center = points[selected];
    if (!attention || !center || selected >= attention.size) return;
    const others = points.map((_, i) => i).filter((i) => points[i] && i !== selected && i < attention.size);
    const weigh = (i: number, isFrom: boolean) =>
      isFrom ? attentionWeight(attention, layer, head, selected, i) : attentionWeight(attention, layer, head, i, selected);
    for (const isFrom of [true, false]) {
      const weights = others.map((i) => weigh(i, isFrom));
      const most = Math.max(...weights, 1e-9);
      others.forEach((i, k) => {
        const share = weights[k] / most;
        if (!(share > 0.04)) return;
        const bend = isFrom ? 1 : -1;
        context.globalAlpha = 0.15 + 0.75 * share;
        curve(context, center, points[i]!, bend, isFrom ? colors.from : colors.to, 0.5 + 3.5 * share);
        context.globalAlpha = 1;
      });
    }
  }

  /** Halos around the entities without which choices, or the value, would be others. */
  private drawInfluence(context: CanvasRenderingContext2D, points: (Point | null)[], radius: number, colors: Theme): void {
    const { influence, decisions } = this.frame!;
    if (!influence) return;
    const { selected } = this.overlay!;
    const strengths = influence.entities.map((_, i) => {
      if (selected === null) return Math.abs(influence.values[i]);
      const places = new Map<number, number>();
      let most = 0;
      for (const { action, actor } of decisions) {
        const place = places.get(action) ?? 0;
        places.set(action, place + 1);
        const change = influence.choices.get(action)?.[i]?.[place];
        if (actor === selected && change !== undefined && change > most) most = change;
      }
      return most;
    });
    const most = selected === null ? Math.max(...strengths, 1e-9) : 1;
    influence.entities.forEach((position, i) => {
      const point = points[position];
      const share = strengths[i] / most;
      if (!point || !(share > 0.02)) return;
      context.globalAlpha = 0.15 + 0.5 * Math.min(share, 1);
      context.fillStyle = colors.accent;
      context.beginPath();
      context.arc(point[0], point[1], radius * (1.4 + 1.2 * Math.min(share, 1)), 0, 2 * Math.PI);
      context.fill();
      context.globalAlpha = 1;
    });
  }

  private point(pane: Pane, place: number[]): Point {
    return [place[pane.axes[0]], place[pane.axes[1]] ?? 0];
  }

  private move(pane: Pane, camera: Camera): void {
    pane.camera = camera;
    pane.isOwn = true;
  }

  private center(pane: Pane, selected: number): void {
    const place = this.places[selected];
    if (!place || !pane.camera) return;
    const [px, py] = toPixel(pane.camera, this.point(pane, place));
    const { x, y, width, height } = pane.box;
    this.move(pane, panned(pane.camera, x + width / 2 - px, y + height / 2 - py));
  }

  private listen(): void {
    const { canvas } = this;
    let last: Point | null = null;
    let isDrag = false;
    const at = (event: MouseEvent): Point => [event.offsetX, event.offsetY];
    const paneAt = ([x]: Point) => this.panes.find(({ box }) => x < box.x + box.width) ?? this.panes[0];
    canvas.addEventListener("pointerdown", (event) => {
      last = at(event);
      isDrag = false;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      const now = at(event);
      if (!isDrag && Math.hypot(now[0] - last[0], now[1] - last[1]) < 4) return;
      isDrag = true;
      const pane = paneAt(last);
      if (pane.camera) this.move(pane, panned(pane.camera, now[0] - last[0], now[1] - last[1]));
      last = now;
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (last && !isDrag) {
        const pane = paneAt(at(event));
        const points = this.places.map((place) => place && pane.camera && toPixel(pane.camera, this.point(pane, place)));
        const found = nearest(points, at(event), 18);
        this.onSelect(found < 0 ? null : found);
      }
      last = null;
    });
    canvas.addEventListener("dblclick", () => this.reset());
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const pane = paneAt(at(event));
        if (pane.camera) this.move(pane, zoomed(pane.camera, Math.exp(-event.deltaY / 400), at(event)));
        this.draw();
      },
      { passive: false },
    );
    new ResizeObserver(() => this.draw()).observe(canvas);
  }
}

/** Return 1, 2 or 5 times a power of ten, at least `least`. */
export function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * 0.999)!;
}

/** Return a colour, or that of a place in the palette. */
export function shade(color: string | number): string {
  return typeof color === "string" ? color : theme().palette[color % LIGHT.length];
}

/** Return the colours of the page, light or dark. */
export function theme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: read("ink"),
    faint: read("faint"),
    grid: read("grid"),
    paper: read("paper"),
    accent: read("accent"),
    from: read("from"),
    to: read("to"),
    palette: read("dark") === "1" ? DARK : LIGHT,
  };
}

function line(context: CanvasRenderingContext2D, from: Point, to: Point, color: string, width: number): void {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
}

function ring(context: CanvasRenderingContext2D, [x, y]: Point, radius: number, color: string, width: number): void {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
}

function curve(context: CanvasRenderingContext2D, [x0, y0]: Point, [x1, y1]: Point, bend: number, color: string, width: number): void {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(x0, y0);
  context.quadraticCurveTo((x0 + x1) / 2 + 0.12 * bend * (y1 - y0), (y0 + y1) / 2 - 0.12 * bend * (x1 - x0), x1, y1);
  context.stroke();
}

function arrow(context: CanvasRenderingContext2D, from: Point, to: Point, color: string, width: number): void {
  line(context, from, to, color, width);
  const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
  const reach = 5 + 1.5 * width;
  context.fillStyle = color;
  context.beginPath();
  context.moveTo(...to);
  for (const turn of [-0.4, 0.4])
    context.lineTo(to[0] - reach * Math.cos(angle + turn), to[1] - reach * Math.sin(angle + turn));
  context.closePath();
  context.fill();
}
