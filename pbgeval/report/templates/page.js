"use strict";
// Tables that can be sorted and searched; without this script they are plain tables. Text is only ever read.
(() => {
  const MAX_WHOLE = 20; // rows that are shown at once; of more rows
  const FIRST_ROWS = 15; // are shown until all are asked for
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  function number(text) {
    return Number.parseFloat(text.replaceAll(",", "").replaceAll("−", "-").replace("< ", "")); // of "+0.25 ± 0.01" 0.25
  }

  function compareNumbers(left, right, sign) {
    if (Number.isNaN(left) || Number.isNaN(right)) { // what is undefined stands last, either way
      return Number(Number.isNaN(left)) - Number(Number.isNaN(right));
    }
    return sign * (left - right);
  }

  function enhance(table) {
    const tools = document.getElementById(table.dataset.tools);
    const search = tools.querySelector("input");
    const status = tools.querySelector("[role=status]");
    const more = tools.querySelector("button");
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const textAt = heads.flatMap((head, at) => (head.classList.contains("t") ? [at] : []));
    let rows = [...body.rows];
    let showAll = rows.length <= MAX_WHOLE;
    const words = new Map(
      rows.map((row) => [row, textAt.map((at) => row.cells[at].textContent).join("\n").toLowerCase()]),
    );

    function draw(news) {
      const wanted = search === null ? "" : search.value.trim().toLowerCase(); // few rows have no search box
      let found = 0;
      for (const row of rows) {
        const matches = wanted === "" || words.get(row).includes(wanted);
        found += Number(matches);
        row.hidden = !matches || (!showAll && found > FIRST_ROWS);
      }
      const shown = showAll ? found : Math.min(found, FIRST_ROWS);
      more.hidden = shown === found;
      more.textContent = `Show all ${found.toLocaleString("en")} rows`;
      const of = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
      status.textContent = news === undefined ? of : `${of}, ${news}`;
    }

    function sort(at) {
      const head = heads[at];
      const isText = textAt.includes(at);
      const before = head.getAttribute("aria-sort");
      const first = isText ? "ascending" : "descending";
      const other = isText ? "descending" : "ascending";
      const order = before === first ? other : first;
      const sign = order === "ascending" ? 1 : -1;
      const keys = new Map(
        rows.map((row) => [row, isText ? row.cells[at].textContent : number(row.cells[at].textContent)]),
      );
      rows.sort((left, right) =>
        isText
          ? sign * collator.compare(keys.get(left), keys.get(right))
          : compareNumbers(keys.get(left), keys.get(right), sign),
      );
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sorted = document.createDocumentFragment();
      rows.forEach((row) => sorted.append(row));
      body.append(sorted);
      draw(`sorted by ${head.textContent}, ${order}`);
    }

    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sort(at));
      head.replaceChildren(button);
    });
    if (search !== null) {
      search.addEventListener("input", () => draw());
    }
    more.addEventListener("click", () => {
      showAll = true;
      draw();
      search.focus(); // the button goes
    });
    more.className = "more-rows";
    table.parentElement.after(more);
    tools.hidden = false;
    draw();
  }

  // A phone shows the main columns until all are asked for.
  function hideWideColumns(table) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "more-columns";
    button.textContent = "Show all columns";
    button.addEventListener("click", () => {
      table.classList.remove("compact");
      button.remove();
      table.parentElement.focus();
    });
    table.classList.add("compact");
    table.parentElement.after(button);
  }

  // A bar below each value of a column, as long as its share of the largest.
  function drawBars(head) {
    const cells = [...head.closest("table").tBodies[0].rows].map((row) => row.cells[head.cellIndex]);
    const largest = Math.max(...cells.map((cell) => number(cell.textContent)).filter((value) => value > 0));
    for (const cell of cells) {
      const share = number(cell.textContent) / largest;
      if (share > 0) {
        cell.style.setProperty("--share", `${(100 * share).toFixed(1)}%`);
      }
    }
  }

  document.querySelectorAll("table[data-tools]").forEach(enhance);
  document.querySelectorAll("table.has-wide").forEach(hideWideColumns);
  document.querySelectorAll("th.m").forEach(drawBars);
})();
