// The page: its data is JSON in the element "data"; every section of it is drawn by its kind.

function showTexts(texts) {
  return texts.parts.flatMap(part => [part.label ? element('h3', {}, part.label) : null,
    element('pre', { tabIndex: 0 }, part.text)]).filter(one => one !== null);
}

const KINDS = { table: showTable, chart: showChart, roofline: showRoofline, timeline: showTimeline,
  texts: showTexts };

function titleOf(section) {
  return section.title ?? `${section.phase}: ${section.counts}, ${UNITS.seconds(section.seconds)}`;
}

function showPage(data) {
  document.title = 'millrace: ' + data.title;
  const main = document.getElementById('main');
  main.append(element('h1', {}, data.title), ...data.lines.map(text => element('p', {}, text)));
  for (const section of data.sections) {
    const shown = KINDS[section.kind](section);
    if (shown.length) main.append(element('section', {}, element('h2', {}, titleOf(section)), shown));
  }
}

// The SVG file of the roofline of a phase: for a still of it, from a script.
function rooflineFile(data, phase) {
  return standalone(rooflineFigure(data.sections.find(one =>
    one.kind === 'roofline' && one.phase === phase)));
}

if (typeof document !== 'undefined') {
  showPage(JSON.parse(document.getElementById('data').textContent));
}
