"use strict";
// Relations, their queries, and the candidates of a query, each unfolded when asked for. Names only ever become text.
(async () => {
  const RELATIONS_AT_ONCE = 100;
  const QUERIES_AT_ONCE = 50;
  const [NOT_KNOWN, KNOWN, ANSWER] = [0, 1, 2];
  const SIDES = ["head", "tail"];
  const TIES = { optimistic: 0, realistic: 0.5, pessimistic: 1 };
  const LETTERS = ["A", "B"];
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const tree = document.getElementById("tree");
  const status = document.getElementById("status");
  const tools = Object.fromEntries(["search", "side", "order", "queries"].map((id) => [id, document.getElementById(id)]));

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.append(...children);
    return element;
  }

  const count = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
  const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
  const fixed = (value) => value.toFixed(3).replace("-", "−");
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(4)}`; // parts of a difference are small

  let data;
  try {
    data = await unpacked(document.getElementById("data").textContent);
  } catch (error) {
    tree.append(make("p", { class: "notice" }, `This browser cannot unpack the queries (${error.name}); use a newer one.`));
    return;
  }
  const isPair = data.runs.length > 1;
  const starts = data.runs.map((run) => {
    let sum = 0;
    return run.length.map((length) => (sum += length) - length);
  });
  const ofRelation = data.relations.map(() => []);
  data.relation.forEach((relation, query) => ofRelation[relation].push(query));
  const words = data.names.map((name) => name.toLowerCase());

  const rank = (run, query) => 1 + data.runs[run].better[query] + TIES[data.rankType] * data.runs[run].tied[query];
  const change = (query) => 1 / rank(1, query) - 1 / rank(0, query);

  // How many queries of a relation there are, the MRR of each run, and what they lose or change of the whole MRR.
  function figuresOf(relation, side) {
    const sums = data.runs.map(() => 0);
    let queries = 0;
    SIDES.forEach((name, at) => {
      if (side === "both" || side === name) {
        const [number, ...ofRuns] = relation.sides[at];
        queries += number;
        ofRuns.forEach((sum, run) => (sums[run] += sum));
      }
    });
    const weight = isPair ? (sums[1] - sums[0]) / data.total : (queries - sums[0]) / data.total;
    return { queries, mrr: sums.map((sum) => sum / Math.max(queries, 1)), weight };
  }

  function queriesOf(relation, wanted) {
    const side = tools.side.value;
    const isNamed = wanted === "" || data.relations[relation].name.toLowerCase().includes(wanted);
    const found = ofRelation[relation].filter(
      (query) =>
        (side === "both" || SIDES[data.side[query]] === side) &&
        (isNamed || words[data.known[query]].includes(wanted) || words[data.answer[query]].includes(wanted)),
    );
    const key = !isPair
      ? { last: (query) => -rank(0, query), first: (query) => rank(0, query) }[tools.queries.value]
      : {
          last: (query) => -Math.abs(change(query)),
          worse: (query) => change(query),
          better: (query) => -change(query),
        }[tools.queries.value];
    return { isNamed, found: found.map((query) => [key(query), query]).sort((a, b) => a[0] - b[0]).map(([, query]) => query) };
  }

  // A line that unfolds: what is in it is made when it is first opened.
  function foldable(parts, fill) {
    const inside = make("div", { class: "inside" });
    const details = make("details", {}, make("summary", {}, ...parts), inside);
    details.addEventListener("toggle", () => {
      if (details.open && !inside.hasChildNodes()) {
        fill(inside);
      }
    });
    return details;
  }

  // Some elements at a time, and a button for more, which hands the focus to the first new one.
  function append(parent, items, atOnce, build) {
    const shown = items.slice(0, atOnce).map(build);
    parent.append(...shown);
    if (items.length > atOnce) {
      const rest = items.slice(atOnce);
      const more = make("button", { type: "button", class: "more" }, `Show ${count(Math.min(rest.length, atOnce))} more of ${count(rest.length)}`);
      more.addEventListener("click", () => {
        const first = append(parent, rest, atOnce, build);
        more.remove();
        first.querySelector("summary").focus();
      });
      parent.append(more);
    }
    return shown[0];
  }

  function relationLine({ relation, figures, found, isNamed }, largest) {
    const of = data.relations[relation];
    const weight = make("span", { class: "figure" }, isPair ? `adds ${signed(figures.weight)} to overall MRR` : `lost ${fixed(figures.weight)}`);
    weight.style.setProperty("--share", `${(100 * Math.abs(figures.weight) / largest).toFixed(1)}%`);
    const mrr = isPair ? `MRR ${fixed(figures.mrr[0])} → ${fixed(figures.mrr[1])}` : `MRR ${fixed(figures.mrr[0])}`;
    const parts = [
      make("span", { class: "subject" }, of.name),
      make("span", { class: "figure" }, plural(figures.queries, "query", "queries")),
      make("span", { class: "figure" }, mrr),
      weight,
    ];
    return foldable(parts, (inside) => {
      inside.append(make("ul", {}, ...of.told.map((line) => make("li", {}, line))));
      const hits = isNamed ? "" : " with this name";
      if (found.length < figures.queries) {
        inside.append(make("p", { class: "note" }, `${count(found.length)} of ${plural(figures.queries, "query", "queries")}${hits}:`));
      }
      append(inside, found, QUERIES_AT_ONCE, queryLine);
    });
  }

  function queryLine(query) {
    const relation = data.relations[data.relation[query]].name;
    const known = data.names[data.known[query]];
    const when = data.time[query] ? ` at time ${data.time[query]}` : "";
    const asked = `${data.side[query] === 0 ? `?, ${relation}, ${known}` : `${known}, ${relation}, ?`}${when}`;
    const ranks = data.runs.map((_, run) => count(rank(run, query)));
    const parts = [
      make("span", { class: "subject" }, asked),
      make("span", { class: "reply" }, `answer: ${data.names[data.answer[query]]}`),
      make("span", { class: "figure" }, `rank ${ranks.join(" → ")}`),
    ];
    return foldable(parts, (inside) => {
      const lists = data.runs.map((_, run) => listOf(run, query));
      if (isPair) {
        inside.append(make("div", { class: "columns" }, ...lists.map((list) => make("div", {}, ...list))));
      } else {
        inside.append(...lists[0]);
      }
    });
  }

  function marksOf(mark) {
    return mark === NOT_KNOWN ? [] : [" ", make("span", { class: "mark" }, mark === KNOWN ? "known answer" : "the answer")];
  }

  function listOf(run, query) {
    const of = data.runs[run];
    const others = data.others[query];
    const better = of.better[query] === 0 ? "no candidate scores" : plural(of.better[query], "candidate scores", "candidates score");
    const sentences = [`Rank ${count(rank(run, query))} of ${count(data.competing[query] + 1)}: ${better} higher than the answer`];
    if (of.tied[query] > 0) {
      sentences[0] += `, ${plural(of.tied[query], "ties", "tie")} with it`;
    }
    if (others > 0) {
      const higher = of.knownBetter[query];
      sentences.push(`${plural(others, "other known answer does", "other known answers do")} not compete${higher > 0 ? ` (${plural(higher, "scores", "score")} higher)` : ""}`);
    }
    const start = starts[run][query];
    const length = of.length[query];
    const rows = Array.from({ length }, (_, at) => {
      const mark = of.mark[start + at];
      const place = at === length - 1 && of.place[query] > length ? of.place[query] : at + 1;
      const score = of.score[start + at];
      return make(
        "tr",
        { class: { [NOT_KNOWN]: "", [KNOWN]: "known", [ANSWER]: "answer" }[mark] },
        make("th", { scope: "row" }, count(place)),
        make("td", { class: "t" }, data.names[of.entity[start + at]], ...marksOf(mark)),
        make("td", {}, score === null ? "–" : String(score).replace("-", "−")),
      );
    });
    if (of.place[query] === 0) {
      sentences.push("The answer is not among the saved candidates");
    }
    const heads = [["place", {}], ["candidate", { class: "t" }], ["score", {}]];
    const name = isPair ? `Best candidates of ${LETTERS[run]}` : "Best candidates";
    const table = make(
      "table",
      { "aria-label": name },
      make("thead", {}, make("tr", {}, ...heads.map(([text, kind]) => make("th", { scope: "col", ...kind }, text)))),
      make("tbody", {}, ...rows),
    );
    const title = isPair ? [make("h3", {}, `${LETTERS[run]}: ${data.labels[run]}`)] : [];
    return [...title, make("p", { class: "note" }, `${sentences.join(". ")}.`), table];
  }

  function draw() {
    const wanted = tools.search.value.trim().toLowerCase();
    const side = tools.side.value;
    const lines = data.relations
      .map((of, relation) => ({ relation, figures: figuresOf(of, side), ...queriesOf(relation, wanted) }))
      .filter(({ figures, found, isNamed }) => figures.queries > 0 && (isNamed || found.length > 0));
    const gain = ({ mrr }) => (isPair ? mrr[1] - mrr[0] : mrr[0]);
    const key = {
      weight: (a, b) => Math.abs(b.figures.weight) - Math.abs(a.figures.weight),
      mrr: (a, b) => gain(a.figures) - gain(b.figures),
      queries: (a, b) => b.figures.queries - a.figures.queries,
      name: (a, b) => collator.compare(data.relations[a.relation].name, data.relations[b.relation].name),
    }[tools.order.value];
    lines.sort(key);
    const largest = Math.max(...lines.map(({ figures }) => Math.abs(figures.weight)), 1e-12);
    tree.replaceChildren();
    append(tree, lines, RELATIONS_AT_ONCE, (line) => relationLine(line, largest));
    const queries = lines.reduce((sum, { found }) => sum + found.length, 0);
    status.textContent = `${plural(lines.length, "relation", "relations")}, ${plural(queries, "query", "queries")}`;
  }

  Object.values(tools).forEach((tool) => tool.addEventListener("input", draw));
  document.getElementById("tools").hidden = false;
  draw();
})();
