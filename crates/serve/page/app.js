// Page of masu: tables and charts of /api/v1/state and /api/v1/history, read again every 10 s.
//
// Names of groups, processes and rules come from strangers: they enter the page by textContent and setAttribute only.
'use strict';

const SVG = 'http://www.w3.org/2000/svg';
const SHOWN = 200; // rows of groups, and of processes of a rule, before "show all"
const RATE_S = 120; // time over which rates are taken

const find = (id) => document.getElementById(id);
const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function fill(element, attributes = {}, children = []) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
}

function write(node, text) {
    if (node.textContent !== text) node.textContent = text;
}

function attribute(node, name, value) {
    if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Numbers, as masu prints them: a tie is rounded to even.
function fixed(number, digits) {
    const scaled = number * 10 ** digits;
    const rounded = Math.abs(scaled % 1) === 0.5 ? 2 * Math.round(scaled / 2) : Math.round(scaled);
    return (rounded / 10 ** digits).toFixed(digits);
}

function bytes(n) {
    if (n < 1024) return `${n} B`;
    if (n < 2 ** 20) return `${fixed(n / 1024, 1)} KiB`;
    if (n < 2 ** 30) return `${fixed(n / 2 ** 20, 1)} MiB`;
    return `${fixed(n / 2 ** 30, 2)} GiB`;
}

const count = (n) => n.toLocaleString('en');
const percent = (fraction) => `${fixed(100 * fraction, fraction < 0.0995 ? 2 : 1)} %`;
const rate = (n) => (n > 0 && n < 10 ? fixed(n, 1) : count(Math.round(n)));
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;

function duration(seconds) {
    const s = Math.floor(seconds);
    const [m, h] = [Math.floor(s / 60), Math.floor(s / 3600)];
    const parts = [[Math.floor(h / 24), 'd'], [h % 24, 'h'], [m % 60, 'm'], [s % 60, 's']];
    const first = parts.findIndex(([n]) => n > 0);
    return (first < 0 ? [[0, 's']] : parts.slice(first, first + 3)).map(([n, unit]) => n + unit).join(' ');
}

const ORDER = new Intl.Collator('en', { numeric: true });
const two = (n) => String(n).padStart(2, '0');
const clock = (date) => `${two(date.getHours())}:${two(date.getMinutes())}`;
const clockSeconds = (date) => `${clock(date)}:${two(date.getSeconds())}`;
const day = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
const moment = (date) => (day(date) === day(new Date()) ? '' : `${day(date)} `) + clockSeconds(date);

// Children by key: an element that stays keeps focus, selection and scroll.
const kept = new WeakMap();
function sync(parent, items, key, create, update) {
    const focused = document.activeElement;
    const before = kept.get(parent) ?? new Map();
    const now = new Map(items.map((item) => [key(item), null]));
    before.forEach((element, name) => now.has(name) || element.remove());
    let at = parent.firstElementChild;
    for (const item of items) {
        const name = key(item);
        if (now.get(name)) continue; // Of two items with one key the first is shown.
        const element = before.get(name) ?? create(item);
        now.set(name, element);
        update(element, item);
        if (element === at) at = at.nextElementSibling;
        else parent.insertBefore(element, at);
    }
    kept.set(parent, now);
    if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

// A table with sorted columns. A column has `head`, `of` (value of an item; null: not counted), and `show` (text of a
// value) or `draw` (into a cell). Text sorts upwards at first, numbers downwards; null comes last.
class Table {
    constructor(table, columns, key, sorted) {
        this.columns = columns;
        this.key = key;
        this.by = sorted;
        this.down = sorted && !sorted.text;
        const cells = columns.map((column) => {
            const head = column.unsorted ? html('span') : html('button', { type: 'button' });
            write(head, column.head);
            if (!column.unsorted) head.addEventListener('click', () => this.sort(column));
            return html('th', { scope: 'col', class: this.kind(column) }, head);
        });
        this.heads = cells;
        this.body = html('tbody');
        table.append(html('thead', {}, html('tr', {}, ...cells)), this.body);
    }

    kind(column) {
        return `w-${column.width}${column.text ? ' text' : ''}`;
    }

    sort(column) {
        this.down = column === this.by ? !this.down : !column.text;
        this.by = column;
        render();
    }

    ordered(items) {
        if (!this.by) return items;
        const { of, text } = this.by;
        const sign = this.down ? -1 : 1;
        const values = new Map(items.map((item) => [item, of(item)]));
        return [...items].sort((x, y) => {
            const [a, b] = [values.get(x), values.get(y)];
            if (a == null || b == null) return (a == null) - (b == null);
            return sign * (text ? ORDER.compare(a, b) : a - b);
        });
    }

    fill(items) {
        this.heads.forEach((head, i) => {
            if (this.columns[i] === this.by) attribute(head, 'aria-sort', this.down ? 'descending' : 'ascending');
            else head.removeAttribute('aria-sort');
        });
        const create = () => html('tr', {}, ...this.columns.map((column) => html('td', { class: this.kind(column) })));
        sync(this.body, items, this.key, create, (row, item) => {
            this.columns.forEach((column, i) => {
                const [cell, value] = [row.cells[i], column.of(item)];
                if (column.draw) column.draw(cell, value, item);
                else write(cell, value == null ? '–' : column.show ? column.show(value) : String(value));
                cell.classList.toggle('none', value == null);
            });
        });
    }
}

// A path with its last part distinct; the parts above shrink first.
function drawPath(cell, path) {
    if (cell.dataset.path === path) return;
    cell.dataset.path = path;
    const cut = path.lastIndexOf('/', path.length - 2) + 1;
    const parts = [['above', path.slice(0, cut)], ['leaf', path.slice(cut)]];
    cell.replaceChildren(...parts.map(([name, text]) => html('bdi', { class: name }, text)));
}

const linkTo = (group) => `#group=${encodeURIComponent(group)}`;

function drawGroup(cell, path) {
    const link = cell.firstChild ?? cell.appendChild(html('a', { class: 'path', href: linkTo(path), title: path }));
    drawPath(link, path);
}

// Usage, and below it a bar: its part of the limit.
function drawUsage(cell, value, group) {
    if (!cell.firstChild) cell.append(html('span'), html('span', { class: 'part' }, html('i')));
    const [text, bar] = cell.children;
    const part = group.limit_bytes ? value / group.limit_bytes : null;
    write(text, bytes(value));
    bar.classList.toggle('off', part === null);
    bar.firstChild.style.width = `${100 * Math.min(part ?? 0, 1)}%`;
    bar.firstChild.classList.toggle('high', part > 0.9);
    attribute(bar, 'title', part === null ? 'no limit' : `${percent(part)} of the limit`);
}

function drawSpark(cell, values) {
    const shape = { class: 'spark', viewBox: '0 0 100 20', preserveAspectRatio: 'none', 'aria-hidden': 'true' };
    const picture = cell.firstChild ?? cell.appendChild(svg('svg', shape, svg('path')));
    const most = Math.max(1, ...(values ?? []).filter((value) => value !== null));
    const step = 100 / Math.max(1, (values?.length ?? 0) - 1);
    const x = (i) => fixed(i * step, 1);
    const path = runs(values ?? [], (value) => value !== null).map((run) => {
        const points = run.map((i) => `${x(i)} ${fixed(19.5 - (18.5 * values[i]) / most, 1)}`);
        return `M${x(run[0])} 21L${points.join('L')}L${x(run.at(-1))} 21`;
    });
    attribute(picture.firstChild, 'd', path.join(''));
}

// Indices of values in a row, in unbroken runs.
function runs(values, holds) {
    const found = [];
    values.forEach((value, i) => {
        if (!holds(value, i)) return;
        if (found.at(-1)?.at(-1) === i - 1) found.at(-1).push(i);
        else found.push([i]);
    });
    return found;
}

function drawHeat(cell, parts) {
    const shown = JSON.stringify(parts ?? null);
    if (cell.dataset.heat === shown) return;
    cell.dataset.heat = shown;
    if (!parts?.length) return cell.replaceChildren('not observed');
    const label = `hot pages by address, low to high; at most ${percent(Math.max(...parts))} of a part`;
    const shape = { class: 'heat', viewBox: `0 0 ${parts.length} 1`, preserveAspectRatio: 'none' };
    const picture = svg('svg', { ...shape, role: 'img', 'aria-label': label }, svg('title', {}, label));
    parts.forEach((part, x) => {
        const opacity = fixed(0.12 + 0.88 * part, 2);
        if (part > 0) picture.append(svg('rect', { x, y: 0, width: 1.02, height: 1, 'fill-opacity': opacity }));
    });
    cell.replaceChildren(picture);
}

// State, and counters of earlier states, for rates.
let state = null;
let answered = null; // time of the last answer
let fault = null; // reason why there is none since
let started = null; // start of the service
let samples = []; // of different measurements, the oldest first
let sparks = new Map();
let sparksAt = 0;

function accept(next) {
    if (state && next.run_s < state.run_s) samples = [];
    const start = Date.now() - 1000 * next.run_s;
    if (started === null || Math.abs(start - started) > 3000) started = start;
    state = next;
    answered = new Date();
    const { groups, took_s } = next.groups;
    if (samples.at(-1)?.took_s === took_s) return;
    const counters = (group) => [group.file_refaults, group.anonymous_refaults, group.pressure_s?.[0]];
    samples.push({ at: next.run_s, took_s, of: new Map(groups.map((group) => [group.group, counters(group)])) });
    while (samples.length > 2 && samples[1].at < next.run_s - RATE_S) samples.shift();
}

// Increase of a counter in a second, from the oldest sample to the newest.
function increase(group, counter) {
    const [first, last] = [samples[0], samples.at(-1)];
    const values = [first, last].map((sample) => sample?.of.get(group.group)?.[counter] ?? null);
    if (first === last || values.includes(null) || values[1] < values[0]) return null;
    return (values[1] - values[0]) / (last.at - first.at);
}

function refaults(group) {
    const of = [increase(group, 0), increase(group, 1)].filter((value) => value !== null);
    return of.length ? 60 * of.reduce((sum, value) => sum + value, 0) : null;
}

const pressure = (group) => increase(group, 2);
const hugePart = ({ huge_bytes: huge, anonymous_bytes: all }) => (huge === null || !all ? null : huge / all);

const USAGE = { head: 'usage', width: 'bytes', of: (group) => group.usage_bytes, draw: drawUsage };
const groupsTable = new Table(find('groups-table'), [
    { head: 'group', width: 'group', text: true, of: (group) => group.group, draw: drawGroup },
    USAGE,
    { head: '1 h', width: 'spark', unsorted: true, of: (group) => sparks.get(group.group), draw: drawSpark },
    { head: 'limit', width: 'bytes', of: (group) => group.limit_bytes, show: bytes },
    { head: 'anonymous', width: 'bytes', of: (group) => group.anonymous_bytes, show: bytes },
    { head: 'file', width: 'bytes', of: (group) => group.file_bytes, show: bytes },
    { head: 'huge', width: 'few', of: hugePart, show: percent },
    { head: 'unmapped', width: 'bytes', of: (group) => group.unmapped_bytes, show: bytes },
    { head: 'working set', width: 'bytes', of: (group) => group.working_set_bytes, show: bytes },
    { head: 'refaults/min', width: 'rate', of: refaults, show: rate },
    { head: 'pressure', width: 'rate', of: pressure, show: percent },
    { head: 'processes', width: 'few', of: (group) => group.processes, show: count },
], (group) => group.group, USAGE);

const PENDING = 'The first measurement of the control groups is pending.';
const NOT_MEASURED = 'Control groups are not measured: this host has no memory controller, or its groups cannot be read.';
const NO_GROUP = 'No group is charged for memory: the memory controller is off (cgroup_disable=memory), or all processes '
    + 'are in the root group, which the kernel does not account.';
let allGroups = false;
function renderGroups() {
    const { groups, every_s } = state.groups;
    const wanted = find('groups-filter').value.toLowerCase();
    const found = groupsTable.ordered(groups.filter((group) => group.group.toLowerCase().includes(wanted)));
    const rows = allGroups ? found : found.slice(0, SHOWN);
    groupsTable.fill(rows);
    let empty = found.length ? '' : 'No group has this in its name.';
    if (!groups.length) empty = every_s ? NO_GROUP : state.run_s < 60 ? PENDING : NOT_MEASURED;
    write(find('groups-empty'), empty);
    find('groups-empty').hidden = !empty;
    find('groups-scroll').hidden = !found.length;
    write(find('groups-count'), wanted ? `${count(found.length)} of ${count(groups.length)}` : '');
    find('groups-more').hidden = rows.length === found.length;
    write(find('groups-more'), `show all ${count(found.length)}`);
}

const ruleTables = new WeakMap();
const FEATURES = { huge: 'huge pages', cache: 'page cache' };
const processColumns = [
    { head: 'process', width: 'pid', of: (process) => process.pid },
    { head: 'command', width: 'name', text: true, of: (process) => process.name },
    { head: 'feature', width: 'feature', text: true, of: (process) => FEATURES[process.feature] ?? process.feature },
    { head: 'state', width: 'state', text: true, of: (process) => process.state, draw: drawState },
    { head: 'reason', width: 'group', text: true, of: (process) => process.why ?? '', draw: drawReason },
    { head: 'promoted', width: 'few', of: (process) => process.promoted, show: count },
    { head: 'split', width: 'few', of: (process) => process.demoted, show: count },
    { head: 'refused', width: 'few', of: (process) => process.refused, show: count },
    { head: 'extra memory', width: 'rate', of: (process) => process.extra_rss_bytes, show: bytes },
    { head: 'heat of memory', width: 'heat', text: true, unsorted: true, of: (process) => process.heat, draw: drawHeat },
];

function drawState(cell, value) {
    if (!cell.firstChild) cell.append(html('span'));
    write(cell.firstChild, value);
    attribute(cell.firstChild, 'class', `s-${value}`);
}

function drawReason(cell, why) {
    write(cell, why);
    attribute(cell, 'title', why);
}

function createRule() {
    const table = html('table', { class: 'processes' });
    const head = html('div', { class: 'head' }, html('p', {}, html('h3'), html('code')), html('p'), html('p'));
    const all = html('button', { type: 'button' });
    const wide = html('div', { class: 'wide', tabindex: '0', role: 'region' }, table);
    const section = html('section', { class: 'rule' }, head, wide, all);
    const key = (process) => `${process.pid} ${process.feature}`;
    const parts = { table: new Table(table, processColumns, key, processColumns[0]), all: false };
    parts.table.down = false;
    all.addEventListener('click', () => {
        parts.all = true;
        render();
    });
    ruleTables.set(section, parts);
    return section;
}

function updateRule(section, rule) {
    const of = state.processes.filter((process) => process.rule === rule.name);
    const [head, wide, all] = section.children;
    const [title, effects, sums] = head.children;
    write(title.children[0], rule.name);
    write(title.children[1], rule.select);
    write(effects, rule.effects.join('; ') || 'no effect');
    const states = new Map();
    of.forEach((process) => states.set(process.state, (states.get(process.state) ?? 0) + 1));
    const { promoted, demoted, refused } = rule.windows;
    const extra = of.reduce((sum, process) => sum + process.extra_rss_bytes, 0);
    const has = of.length ? [...states].map(([name, n]) => `${count(n)} ${name}`).join(', ') : 'no process now';
    const windows = `${count(promoted)} promoted, ${count(demoted)} split, ${count(refused)} refused`;
    write(sums, `${has} · windows of 2 MiB: ${windows} · extra memory: ${bytes(extra)}`);
    wide.hidden = !of.length;
    attribute(wide, 'aria-label', `Processes under the rule ${rule.name}`);
    const parts = ruleTables.get(section);
    parts.table.fill(parts.table.ordered(of).slice(0, parts.all ? of.length : SHOWN));
    all.hidden = parts.all || of.length <= SHOWN;
    write(all, `show all ${count(of.length)}`);
}

function renderRules() {
    const { rules, processes } = state;
    find('rules-empty').hidden = rules.length > 0;
    const number = new Set(processes.map((process) => process.pid)).size;
    const numbers = `${count(rules.length)} in force, ${plural(number, 'process', 'processes')}`;
    write(find('rules-count'), rules.length ? numbers : '');
    sync(find('rules-list'), rules, (rule) => rule.name, createRule, updateRule);
}

const timeOf = (event) => moment(new Date(started + 1000 * event.at_s));
const sinceStart = (s) => (s < 60 ? `${fixed(s, 1)}s` : duration(s));
const logTable = new Table(find('log-table'), [
    { head: 'time', width: 'time', text: true, unsorted: true, of: timeOf },
    { head: 'since start', width: 'since', unsorted: true, of: (event) => event.at_s, show: sinceStart },
    { head: 'event', width: 'event', text: true, unsorted: true, of: (event) => event.event },
    { head: 'process', width: 'pid', unsorted: true, of: (event) => event.of?.[0] ?? '' },
    { head: 'command', width: 'name', text: true, unsorted: true, of: (event) => event.of?.[1] ?? '' },
    { head: 'text', width: 'group', text: true, unsorted: true, of: (event) => event.text },
], (event) => event.key);

function renderLog() {
    const seen = new Map();
    const events = state.events.map((event) => {
        const text = JSON.stringify([event.at_s, event.event, event.of, event.text]);
        seen.set(text, (seen.get(text) ?? 0) + 1);
        return { ...event, key: `${seen.get(text)} ${text}` };
    });
    const wanted = find('log-filter').value.toLowerCase();
    const words = (event) => [event.event, ...(event.of ?? []), event.text].join(' ').toLowerCase();
    const found = events.filter((event) => words(event).includes(wanted)).reverse();
    logTable.fill(found);
    const empty = events.length ? (found.length ? '' : 'No event has this.') : 'No event yet.';
    write(find('log-empty'), empty);
    find('log-empty').hidden = !empty;
    find('log-scroll').hidden = !found.length;
    const all = plural(events.length, 'event', 'events');
    write(find('log-count'), wanted ? `${count(found.length)} of ${all}` : all);
}

function renderHeader() {
    const { groups, left_out, every_s, took_s } = state.groups;
    write(find('version'), state.version ?? '');
    write(find('running'), duration(state.run_s));
    write(find('processor'), percent(state.run_s > 0 ? state.cpu_s / state.run_s : 0));
    write(find('dropped'), bytes(state.cache_dropped_bytes));
    const left = left_out ? `, ${count(left_out)} left out` : '';
    write(find('measured'), every_s ? `${count(groups.length)} every ${duration(every_s)}${left}` : 'not measured yet');
    attribute(find('measured'), 'title', every_s ? `the last measurement took ${fixed(1000 * took_s, 1)} ms` : '');
    find('measured').classList.toggle('high', left_out > 0);
}

const NOT_RELOADED = 'The rules were changed and have a fault; the rules before stay in force.';
function renderWarnings() {
    const warnings = [];
    const since = answered ? ` since ${moment(answered)}; the figures are of that time` : '';
    if (fault) warnings.push(`No answer from masu${since}. ${fault}`);
    if (state?.reload_failed) warnings.push(`${NOT_RELOADED} ${state.reload_failed}`);
    sync(find('warnings'), warnings, (text) => text, () => html('p'), write);
}

// View by the hash. Each keeps its own place of scrolling.
const VIEWS = { groups: renderGroups, group: () => groupView.render(), rules: renderRules, log: renderLog };
const scrolled = {};
let view = null;

function route() {
    const [name, value] = location.hash.slice(1).split(/=(.*)/s);
    const next = name in VIEWS && (name !== 'group' || value) ? name : 'groups';
    if (view) scrolled[view] = window.scrollY;
    view = next;
    let group = null;
    try {
        if (view === 'group') group = decodeURIComponent(value);
    } catch {
        group = value;
    }
    for (const each of Object.keys(VIEWS)) find(`view-${each}`).hidden = each !== view;
    for (const link of document.querySelectorAll('nav a')) {
        const current = link.hash === `#${view === 'group' ? 'groups' : view}`;
        if (current) link.setAttribute('aria-current', 'page');
        else link.removeAttribute('aria-current');
    }
    document.title = `masu: ${group ?? view}`;
    if (group !== null) groupView.open(group);
    render();
    window.scrollTo(0, view === 'group' ? 0 : scrolled[view] ?? 0);
    readHistory();
}

function render() {
    renderWarnings();
    if (!state) return;
    renderHeader();
    VIEWS[view]();
}

async function get(path) {
    const answer = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(8000) });
    if (!answer.ok) throw new Error(`${path.split('?')[0]} answers ${answer.status}.`);
    return answer.json();
}

async function readHistory() {
    try {
        if (view === 'group') await groupView.read();
        else if (view === 'groups' && Date.now() - sparksAt > 60000) {
            const history = await get('/api/v1/history?range=1h');
            sparks = new Map(history.groups.map((group) => [group.group, group.usage]));
            sparksAt = Date.now();
        } else return;
        render();
    } catch { /* The state tells whether masu answers. */ }
}

let timer = null;
const opened = Date.now();
async function refresh() {
    clearTimeout(timer);
    try {
        accept(await get('/api/v1/state'));
        fault = null;
    } catch (error) {
        const causes = { TimeoutError: 'It takes longer than 8 s.', TypeError: 'The connection fails.' };
        fault = causes[error.name] ?? error.message;
    }
    render();
    readHistory();
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(refresh, Date.now() - opened < 60000 ? 5000 : 10000);
}

let groupView;
document.addEventListener('DOMContentLoaded', () => {
    groupView = new GroupView();
    history.scrollRestoration = 'manual';
    window.addEventListener('hashchange', route);
    document.addEventListener('visibilitychange', () => document.hidden || refresh());
    for (const id of ['groups-filter', 'log-filter']) find(id).addEventListener('input', render);
    find('groups-more').addEventListener('click', () => {
        allGroups = true;
        render();
    });
    find('skip').addEventListener('click', (event) => {
        event.preventDefault();
        find('view').focus();
    });
    route();
    refresh();
});
