/** Places that people take, and the choices that they make there. */

import { button, byId, el, field, boundsText, named, numbersText, percent, say, tag } from "./dom.js";
import type { Actor, Chosen, Live, Place } from "./live.js";
import type { Page } from "./main.js";
import type { Choice, Component, Decision, Frame } from "./model.js";

/** Menus are no longer than this; targets can be chosen in the scene and in the list as well. */
const MOST_ITEMS = 40;

/** Return true if an actor of a frame is in one of the places. */
export function isIn(places: Place[], frame: Frame, actor: number): boolean {
  const { key } = frame.all[actor];
  return places.some(([side, of]) => side === frame.side && (of === null || of === key));
}

/** Return the decision of an actor that a person has to make or can still change; those without a choice first. */
export function openDecision(live: Live, frame: Frame, actor: number | null): Decision | null {
  if (!live.isMine || !live.isWaiting(frame) || actor === null) return null;
  const own = frame.decisions.filter((one) => one.actor === actor && one.isTaken && isIn(live.places, frame, actor));
  return own.find((one) => live.isOpen(frame, one)) ?? own[0] ?? null;
}

/** Return a frame in which people choose as they may see it: their choices so far, and the agent's as advice. */
export function withAdvice(frame: Frame, live: Live, advice: string): Frame {
  if (!live.isWaiting(frame)) return frame;
  const decisions = frame.decisions.map((one) => {
    if (!isIn(live.places, frame, one.actor)) return one;
    const own = live.chosenIn(frame, one);
    const isSecret = live.isMine && (advice === "hidden" || (advice === "after" && live.isOpen(frame, one)));
    const hidden = isSecret ? { probability: NaN, beside: NaN } : {};
    const isAgents = !isSecret && !one.byHand; // of an earlier choice it is the person's
    const choices = one.choices.map((choice, i): Choice => ({ ...choice, ...hidden, isChosen: i === own, isAdvised: choice.isChosen && isAgents }));
    const numbers = one.numbers.map((number, i): Component => {
      const advised = isAgents ? number.chosen : NaN;
      const secret = isSecret ? { shown: [], beside: [] } : {};
      return { ...number, ...secret, chosen: Array.isArray(own) ? own[i] : NaN, advised };
    });
    return { ...one, isSecret, byHand: own !== undefined, choices, numbers };
  });
  return { ...frame, decisions };
}

/** Return what a person chose and what the agent would have taken. */
export function compared(name: string, decision: Decision, choice: Chosen): string {
  const say = ({ label, probability }: Choice) => `${label} (${percent(probability)})`;
  const agents = decision.choices.find(({ isChosen }) => isChosen);
  if (Array.isArray(choice)) {
    const own = decision.numbers.map((one, i) => ({ ...one, chosen: choice[i] }));
    return `${name}: you chose ${numbersText(own)}, the agent ${numbersText(decision.numbers)}.`;
  }
  return `${name}: you chose ${say(decision.choices[choice])}, the agent ${agents ? say(agents) : "nothing"}.`;
}

/** Buttons and menu of a person. */
export class Hand {
  private frame: Frame | null = null;
  private selected: number | null = null;
  private turn = "";
  private menu = "";
  private side = 0;
  private comparison = "";
  /** The action whose choice is made again. */
  private again = -1;

  // prettier-ignore
  constructor(private page: Page, private live: Live) {
    window.setInterval(() => this.count(), 250);
  }

  private get decision(): Decision | null {
    const open = this.frame && openDecision(this.live, this.frame, this.selected);
    const again = this.frame?.decisions.find(({ action, actor }) => action === this.again && actor === this.selected);
    return (open && again) ?? open;
  }

  /** The choices of the decision that may be made, with their indices. */
  private get legal(): [index: number, choice: Choice][] {
    const all = [...(this.decision?.choices ?? []).entries()];
    return all.filter(([, { isAllowed }]) => isAllowed);
  }

  /** Return the positions that a click chooses. */
  get targets(): number[] {
    return this.legal.map(([, { target }]) => target).filter((target) => target !== null);
  }

  /** Return the first actor without a choice if the turn is another one than at the last call, else null. */
  nextActor(): Actor | null {
    const { waiting, isMine } = this.live;
    const turn = waiting && isMine ? `${waiting.episode} ${waiting.step} ${waiting.actors}` : "";
    if (turn === this.turn) return null;
    this.turn = turn;
    return (isMine && waiting?.actors[0]) || null;
  }

  /** Make the first choice that fits its place in the menu or its target; return true if there is one. */
  choose(fits: (target: number | null, place: number) => boolean): boolean {
    const { frame, decision } = this;
    const [choice] = this.legal.find(([, { target }], place) => fits(target, place)) ?? [];
    if (!frame || !decision || choice === undefined) return false;
    this.send(frame, decision, choice);
    return true;
  }

  private send(frame: Frame, decision: Decision, choice: Chosen): void {
    this.again = -1;
    this.comparison = field("advice").value === "after" ? compared(frame.all[decision.actor].name, decision, choice) : "";
    this.live.choose(frame, decision.action, decision.actor, choice);
    this.showBusy();
    const { waiting, fps, isPaused } = this.live;
    if (waiting?.actors.length || fps !== null || isPaused) this.page.refreshSoon(); // else the next frame comes at once
  }

  /** Take the place of the selected actor, or of its side, or give it back. */
  take(isSide: boolean): void {
    const id = isSide ? "take-side" : "take-actor";
    if (byId(id).hidden) return;
    const key = isSide ? null : this.frame!.all[this.selected!].key;
    const { side } = this; // a side can be taken before its first frame is shown
    this.live.send(this.hasPlace([side, key]) ? "give" : "take", { side, key });
  }

  private hasPlace([side, key]: Place): boolean {
    return this.live.isMine && this.live.places.some(([of, which]) => of === side && which === key);
  }

  /** Show buttons and menu for a frame as the agent acts in it. */
  show(frame: Frame | null, selected: number | null): void {
    [this.frame, this.selected] = [frame, selected];
    const { live } = this;
    const entity = selected === null ? null : frame?.all[selected];
    const acts = frame?.decisions.some(({ actor }) => actor === selected) ?? false;
    const side = (this.side = frame?.side ?? this.side);
    const offer = (id: string, place: Place, name: string, isOffered: boolean) => {
      byId(id).hidden = !isOffered;
      byId(id).replaceChildren(this.hasPlace(place) ? "give back " : "take ", named(name));
    };
    offer("take-actor", [side, entity?.key ?? null], entity?.name ?? "", acts && !this.hasPlace([side, null]));
    const sideName = live.replay!.header.sides > 1 ? `side ${side + 1}` : "all actors";
    offer("take-side", [side, null], sideName, true);
    say("places", live.places.length && !live.isMine ? "Another tab has taken places." : "");
    this.showMenu(frame);
    this.count();
  }

  /** Mark the turn as busy until the server has answered: a choice may lead to others, and to another actor's turn. */
  private showBusy(): void {
    byId("turn").setAttribute("aria-busy", String(!this.live.isAnswered));
  }

  private showMenu(frame: Frame | null): void {
    const { live, decision } = this;
    const isTurn = live.isMine && live.waiting !== null;
    byId("turn").hidden = !isTurn && !this.comparison;
    byId("leave").hidden = !isTurn;
    this.showBusy();
    const name = decision ? `${frame!.all[decision.actor].name}, ${decision.name}` : "select a waiting actor";
    const isHere = frame !== null && live.isWaiting(frame);
    say("turn-text", !isTurn ? "" : isHere ? `Your turn: ${name} (${live.waiting!.actors.length} without a choice)` : `Your turn, at step ${live.waiting!.step}.`);
    say("comparison", this.comparison);
    const labels = this.legal.map(([, { label }]) => label);
    const actor = [frame?.side, decision?.action, decision?.actor];
    const chosen = decision ? this.legal.findIndex(([index]) => index === live.chosenIn(frame!, decision)) : -1;
    const numbers = decision?.numbers ?? [];
    const bounds = numbers.map(({ low, high }) => [low, high]);
    const after = decision && live.replay!.header.actions[decision.action][2].after;
    const again = frame?.decisions.find((one) => one.name === after && one.actor === decision!.actor);
    const menu = JSON.stringify([frame?.step, actor, labels, chosen, bounds, again?.action]);
    if (menu === this.menu) return; // so that no click is lost
    this.menu = menu;
    const hadFocus = byId("menu").contains(document.activeElement);
    const items: HTMLElement[] = labels.slice(0, MOST_ITEMS).map((label, i) => {
      const item = button(named(label), () => this.choose((_, place) => place === i), { class: "", "aria-pressed": i === chosen && "true" });
      return el("li", {}, i < 9 && tag(String(i + 1)), item);
    });
    if (decision && numbers.length) items.push(...this.numberItems(frame!, decision));
    if (again) {
      const reopen = () => [(this.again = again.action), this.page.refreshSoon()];
      items.push(el("li", {}, button(el("span", {}, "another ", named(again.name)), reopen)));
    }
    byId("menu").replaceChildren(...items);
    if (hadFocus) byId("menu").querySelector("button")?.focus();
  }

  /** Return an input for each number of a decision, and the button that chooses them. */
  private numberItems(frame: Frame, decision: Decision): HTMLElement[] {
    const own = this.live.chosenIn(frame, decision);
    const inputs = decision.numbers.map(({ name, low, high, chosen }, i) => {
      const value = Array.isArray(own) ? own[i] : field("advice").value === "shown" ? chosen : undefined;
      const limits = Number.isFinite(low) ? { min: low, max: high } : {};
      return el("input", { type: "number", step: "any", "data-component": name, "aria-label": name, value, ...limits });
    });
    const choose = () => {
      const wrong = inputs.find((input) => !(Number.isFinite(input.valueAsNumber) && input.reportValidity()));
      if (wrong) wrong.focus();
      else this.send(frame, decision, inputs.map(({ valueAsNumber }) => valueAsNumber)); // prettier-ignore
    };
    inputs.forEach((input) => input.addEventListener("keydown", ({ key }) => key === "Enter" && choose()));
    const items = decision.numbers.map(({ name, low, high }, i) => el("li", {}, el("label", {}, named(name), " ", inputs[i], ` ${boundsText(low, high)}`)));
    return [...items, el("li", {}, button("choose", choose, { class: "", id: "choose-numbers" }))];
  }

  /** Show the seconds that are left. */
  private count(): void {
    const until = this.live.waiting?.until ?? null;
    const left = until === null ? 0 : Math.max(until - performance.now(), 0) / 1000;
    byId("countdown").textContent = until === null ? "" : `the agent chooses in ${left.toFixed(1)} s`;
  }
}
