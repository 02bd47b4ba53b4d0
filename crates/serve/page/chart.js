// View of one group: its classes over time, and its figures. Loaded after app.js, whose functions it uses.
'use strict';

const RANGES = { '1h': 3600, '24h': 86400, '7d': 604800 };

// Figures of one group. `series` is the name in the history, `area` or `line` the style in the chart; `sub` is a part
// of the figure above.
const FIGURES = [
    { name: 'usage', now: (group) => group.usage_bytes, series: 'usage', line: 'usage' },
    { name: 'anonymous', now: (group) => group.anonymous_bytes, series: 'anonymous', area: 'anonymous' },
    { name: 'on huge pages', now: (group) => group.huge_bytes, series: 'huge', line: 'huge', sub: true },
    { name: 'unmapped', now: (group) => group.unmapped_bytes, series: 'unmapped', line: 'unmapped', sub: true },
    { name: 'shared', now: (group) => group.shared_bytes, series: 'shared', area: 'shared' },
    { name: 'kernel', now: (group) => group.kernel_bytes, series: 'kernel', area: 'kernel' },
    { name: 'file', now: (group) => group.file_bytes, series: 'file', area: 'file' },
    { name: 'inactive', now: (group) => group.inactive_file_bytes, sub: true },
    { name: 'other', now: (group) => rest(group, '_bytes'), series: 'rest', area: 'rest' },
    { name: 'working set', now: (group) => group.working_set_bytes, series: 'kubelet_working_set', line: 'working' },
    { name: 'limit', now: (group) => group.limit_bytes, line: 'limit' },
    { name: 'swap', now: (group) => group.swap_bytes, series: 'swap', line: 'swap' },
    { name: 'pool of huge pages', now: (group) => group.huge_pool_bytes },
    { name: 'refaults/min', now: refaults, show: rate },
    { name: 'pressure', now: pressure, show: percent },
    { name: 'processes', now: (group) => group.processes, show: count },
];
const CLASSES = ['anonymous', 'shared', 'kernel', 'file'];
const rest = (of, unit) => CLASSES.reduce((left, name) => Math.max(0, left - (of[name + unit] ?? 0)), of[`usage${unit}`]);

// View of one group: its classes over time, and its figures.
class GroupView {
    constructor() {
        [this.group, this.range] = [null, '1h'];
        this.forget();
        this.chart = find('chart');
        this.buttons = [...document.querySelectorAll('[data-range]')];
        for (const button of this.buttons) button.addEventListener('click', () => this.choose(button.dataset.range));
        this.chart.addEventListener('pointermove', (event) => this.point(event.clientX));
        this.chart.addEventListener('pointerleave', () => this.move(null));
        this.chart.addEventListener('keydown', (event) => this.key(event));
        new ResizeObserver(() => this.draw()).observe(this.chart);
    }

    forget() {
        [this.history, this.of, this.cursor, this.readAt] = [null, null, null, 0];
    }

    open(group, range = this.range) {
        if (group !== this.group) this.limit = null;
        if (group !== this.group || range !== this.range) this.forget();
        [this.group, this.range] = [group, range];
        this.buttons.forEach((button) => attribute(button, 'aria-pressed', String(button.dataset.range === range)));
        find('group-head').setAttribute('title', group);
        drawPath(find('group-head'), group);
        this.draw();
    }

    choose(range) {
        this.open(this.group, range);
        readHistory();
    }

    async read() {
        const { group, range } = this;
        if (Date.now() - this.readAt < 1000 * Math.max(9, this.history?.every_s ?? 0)) return;
        const history = await get(`/api/v1/history?range=${range}&group=${encodeURIComponent(group)}`);
        if (group !== this.group || range !== this.range) return;
        const of = history.groups.find((found) => found.group === group);
        const at = (i) => Object.fromEntries(['usage', ...CLASSES].map((name) => [name, of[name]?.[i]]));
        if (of) of.rest = of.usage.map((usage, i) => (usage === null ? null : rest(at(i), '')));
        const cursor = this.cursor === null ? -1 : history.at.indexOf(this.history.at[this.cursor]);
        [this.history, this.of, this.readAt, this.cursor] = [history, of, Date.now(), cursor < 0 ? null : cursor];
        this.draw();
    }

    render() {
        const now = state.groups.groups.find((group) => group.group === this.group);
        const gone = 'This group is not among the groups measured last: it has ended, or has no process.';
        write(find('group-note'), now ? '' : gone);
        if (now && this.limit !== now.limit_bytes) [this.limit, this.drawAgain] = [now.limit_bytes, true];
        if (this.drawAgain) this.draw();
        const at = this.cursor === null ? null : new Date(1000 * this.history.at[this.cursor]);
        const format = this.range === '7d' ? (date) => `${day(date).slice(5)} ${clock(date)}` : clockSeconds;
        write(find('cursor-head'), at ? format(at) : 'at cursor');
        sync(find('figures').tBodies[0], FIGURES, (figure) => figure.name, createFigure, (row, figure) => {
            const series = (figure.series && this.of?.[figure.series]) ?? [];
            const known = series.filter((value) => value !== null);
            const least = known.length ? known.reduce((a, b) => Math.min(a, b)) : null;
            const most = known.length ? known.reduce((a, b) => Math.max(a, b)) : null;
            const atCursor = this.cursor === null ? undefined : series[this.cursor];
            [now ? figure.now(now) : null, atCursor, least, most].forEach((value, i) => {
                const nothing = value === null && (i === 0 || figure.series) ? '–' : '';
                write(row.cells[i + 1], value == null ? nothing : (figure.show ?? bytes)(value));
            });
        });
    }

    point(x) {
        if (!this.scale) return;
        const at = this.scale.time(x - this.chart.getBoundingClientRect().left);
        const distance = (i) => Math.abs(this.history.at[i] - at);
        this.move(this.history.at.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0));
    }

    key(event) {
        const last = (this.history?.at.length ?? 0) - 1;
        const from = this.cursor ?? last;
        const step = event.shiftKey ? 10 : 1;
        const to = { ArrowLeft: from - step, ArrowRight: from + step, Home: 0, End: last }[event.key];
        if (event.key === 'Escape') this.move(null);
        if (to === undefined || last < 0) return;
        event.preventDefault();
        this.move(Math.min(Math.max(to, 0), last));
    }

    move(cursor) {
        if (cursor === this.cursor) return;
        this.cursor = cursor;
        this.drawCursor();
        if (state) this.render();
    }

    drawCursor() {
        const mark = this.chart.querySelector('.cursor');
        if (!mark) return;
        const x = this.cursor === null ? -9 : Math.round(this.scale.x(this.history.at[this.cursor]));
        fill(mark, { x1: x, x2: x });
        const usage = this.cursor === null ? null : this.of.usage[this.cursor];
        const at = this.cursor === null ? 'no time chosen' : moment(new Date(1000 * this.history.at[this.cursor]));
        const told = at + (usage === null ? '' : `, usage ${bytes(usage)}`);
        const range = { 'aria-valuenow': this.cursor ?? 0, 'aria-valuemax': this.history.at.length - 1 };
        fill(this.chart, { ...range, 'aria-valuetext': told });
    }

    draw() {
        this.drawAgain = false;
        const { history, of, chart } = this;
        const [width, height] = [chart.clientWidth, chart.clientHeight];
        this.scale = null;
        if (!width) {
            this.drawAgain = true;
            return;
        }
        const picture = svg('svg', { width, height, 'aria-hidden': 'true' });
        chart.replaceChildren(picture);
        if (!history) return;
        const values = of ? of.usage : [];
        if (!values.some((value) => value !== null)) {
            const middle = { x: width / 2, y: height / 2, 'text-anchor': 'middle' };
            picture.append(svg('text', middle, 'No history of this group in this range.'));
            return;
        }
        const [left, right, top, bottom] = [62, width - 6, 8, height - 20];
        const series = FIGURES.filter((figure) => figure.line && of[figure.series]?.some((value) => value > 0));
        let most = Math.max(1, ...series.map((figure) => of[figure.series].reduce((a, b) => Math.max(a, b ?? 0), 0)));
        const limit = this.limit && this.limit <= 3 * most ? this.limit : null;
        most = 1.03 * Math.max(most, limit ?? 0);
        const [end, span] = [history.at.at(-1), RANGES[this.range]];
        const x = (at) => right - ((end - at) / span) * (right - left);
        const y = (value) => bottom - (value / most) * (bottom - top);
        this.scale = { x, time: (px) => end - ((right - px) / (right - left)) * span };
        this.drawGrid(picture, { x, y, most, end, span, left, right, bottom });
        drawSeries(picture, history, of, series, x, y);
        if (limit) picture.append(svg('path', { class: 'l l-limit', d: `M${left} ${y(limit)}H${right}` }));
        const above = svg('text', { x: right, y: top + 6, 'text-anchor': 'end' });
        if (this.limit && !limit) picture.append(fill(above, {}, [`limit ${bytes(this.limit)}, above the chart`]));
        picture.append(svg('line', { class: 'cursor', y1: top, y2: bottom }));
        this.drawCursor();
    }

    drawGrid(picture, { x, y, most, end, span, left, right, bottom }) {
        const step = 2 ** Math.ceil(Math.log2(most / 5));
        for (let value = 0; value <= most; value += step) {
            const at = Math.round(y(value));
            picture.append(svg('line', { class: 'grid', x1: left, x2: right, y1: at, y2: at }));
            const place = { x: left - 6, y: at + 4, 'text-anchor': 'end' };
            picture.append(svg('text', place, value ? roundBytes(value) : '0'));
        }
        const narrow = right - left < 420 ? 2 : 1;
        const every = { '1h': 600, '24h': 3 * 3600, '7d': 86400 }[this.range] * narrow;
        const zone = 60 * new Date(1000 * end).getTimezoneOffset();
        for (let at = Math.ceil((end - span - zone) / every) * every + zone; at <= end; at += every) {
            const date = new Date(1000 * at);
            picture.append(svg('line', { class: 'grid', x1: x(at), x2: x(at), y1: bottom, y2: bottom + 4 }));
            const anchor = x(at) > right - 16 ? 'end' : x(at) < left + 16 ? 'start' : 'middle';
            const name = this.range === '7d' ? day(date).slice(5) : clock(date);
            picture.append(svg('text', { x: x(at), y: bottom + 16, 'text-anchor': anchor }, name));
        }
    }
}

function roundBytes(n) {
    const power = [30, 20, 10].find((power) => n >= 2 ** power) ?? 0;
    return `${+(n / 2 ** power).toFixed(2)} ${{ 30: 'GiB', 20: 'MiB', 10: 'KiB', 0: 'B' }[power]}`;
}

// Areas of the classes, each on the one before, and the lines. A pause is a gap; a value alone has the width of its
// interval.
function drawSeries(picture, history, of, lines, x, y) {
    const { at, every_s } = history;
    const known = runs(of.usage, (value) => value !== null);
    const parts = known.flatMap((run) => split(run, (a, b) => at[b] - at[a] > 2.5 * every_s)).map((run) => {
        if (run.length > 1) return run.map((i) => [x(at[i]), i]);
        return [-0.5, 0.5].map((part) => [x(at[run[0]] + part * every_s), run[0]]);
    });
    const line = (places, value) => places.map(([x, i]) => `${fixed(x, 1)} ${fixed(y(value(i)), 1)}`).join('L');
    const top = of.usage.map(() => 0);
    for (const { area, series } of FIGURES.filter((figure) => figure.area && of[figure.series])) {
        const base = [...top];
        of[series].forEach((value, i) => (top[i] += value ?? 0));
        const paths = parts.map((run) => `M${line(run, (i) => top[i])}L${line([...run].reverse(), (i) => base[i])}Z`);
        picture.append(svg('path', { class: `f-${area}`, d: paths.join('') }));
    }
    for (const figure of lines) {
        const values = of[figure.series];
        const counted = parts.map((run) => run.filter(([, i]) => values[i] !== null)).filter((run) => run.length);
        const paths = counted.map((run) => `M${line(run, (i) => values[i])}`);
        picture.append(svg('path', { class: `l l-${figure.line}`, d: paths.join('') }));
    }
}

function createFigure(figure) {
    const sample = svg('svg', { class: 'swatch', viewBox: '0 0 14 9', 'aria-hidden': 'true' });
    if (figure.area) sample.append(svg('rect', { class: `f-${figure.area}`, width: 14, height: 9 }));
    if (figure.line) sample.append(svg('path', { class: `l l-${figure.line}`, d: 'M0 4.5H14' }));
    const cells = [1, 2, 3, 4].map(() => html('td'));
    return html('tr', {}, html('th', { scope: 'row', class: figure.sub ? 'sub' : '' }, sample, figure.name), ...cells);
}

// A run of indices, cut where two in a row are apart.
function split(run, apart) {
    const found = [[]];
    run.forEach((i, n) => (n && apart(run[n - 1], i) ? found.push([i]) : found.at(-1).push(i)));
    return found;
}
