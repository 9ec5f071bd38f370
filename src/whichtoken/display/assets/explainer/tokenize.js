// Texts to tokens, as whichtoken.datasets.word_split and text_pipeline make them. Tables of characters and patterns are those of the
// Python that wrote the page; of the browser's own Unicode only the normal forms enter, which no version changes.

const SIGMA = 0x3a3, FINAL_SIGMA = "ς", NOTHING = 0xfffd;

/** A test of characters from the ends of ranges, given by their differences to base 36: "0 1a 5" is 0, 46, 51. */
function readSet(text) {
  const members = new Uint8Array(0x110000), edges = [];
  for (const part of text ? text.split(" ") : []) edges.push((edges.at(-1) ?? 0) + parseInt(part, 36));
  for (let k = 0; k < edges.length; k += 2) members.fill(1, edges[k], edges[k + 1]);
  return (character) => members[character.codePointAt(0)] === 1;
}

const isIgnorable = (character) => /\p{Case_Ignorable}/u.test(character), isCased = (character) => /\p{Cased}/u.test(character);

/** Whether the sigma at a place ends a word: a cased letter stands before it and none after it, ignorable ones aside. */
function endsWord(characters, place) {
  let before = place - 1, after = place + 1;
  while (before >= 0 && isIgnorable(characters[before])) before--;
  while (after < characters.length && isIgnorable(characters[after])) after++;
  return before >= 0 && isCased(characters[before]) && !(after < characters.length && isCased(characters[after]));
}

/** Python's str.lower. */
function lowerWith({ runs, others }) {
  const lowered = new Map(others);
  for (const [first, count, step, shift] of runs)
    for (let k = 0; k < count; k++) lowered.set(first + k * step, String.fromCodePoint(first + k * step + shift));
  return (text) => {
    const characters = [...text];
    return characters.map((character, place) => {
      const code = character.codePointAt(0);
      return code === SIGMA && endsWord(characters, place) ? FINAL_SIGMA : lowered.get(code) ?? character;
    }).join("");
  };
}

/** Python's html.unescape of one character reference. */
function unescapeWith({ named, numbers, invalid }) {
  const codes = new Map(numbers), gone = new Set(invalid);
  return (reference) => {
    const inside = reference.slice(1);
    if (inside[0] === "#") {
      const code = /[xX]/.test(inside[1]) ? parseInt(inside.slice(2), 16) : parseInt(inside.slice(1), 10);
      if (codes.has(code)) return codes.get(code);
      if ((code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return String.fromCodePoint(NOTHING);
      return gone.has(code) ? "" : String.fromCodePoint(code);
    }
    for (let size = inside.length; size > 1; size--) {
      const found = named[inside.slice(0, size)];
      if (typeof found === "string") return found + inside.slice(size);  // what every object inherits is no string
    }
    return reference;
  };
}

/** What each character becomes: letters in lower case, apostrophes, emoji, a space or nothing. */
function letteringWith(rules, lower) {
  const isLetter = readSet(rules.letters), isFormat = readSet(rules.formats), isKept = new RegExp(rules.kept, "u"), known = new Map();
  const becomes = (sign) => {
    if (rules.apostrophes.includes(sign)) return "'";
    if (rules.version === 1) return isLetter(sign) ? sign : " ";
    if (isKept.test(sign)) return sign;
    if (rules.dropped.includes(sign)) return "";
    if (isFormat(sign)) return sign === "\u200b" ? " " : "";
    if (!isLetter(sign)) return " ";
    const form = lower(sign.normalize("NFKC"));
    return [...form].every(isLetter) ? form : sign;
  };
  return (text) => [...text].map((sign) => {
    if (!known.has(sign)) known.set(sign, becomes(sign));
    return known.get(sign);
  }).join("");
}

/** Lower-case words, apostrophes, emoji and spaces: a function from a text to its line. */
function lineWith(rules) {
  const lower = lowerWith(rules.lower), letters = letteringWith(rules, lower), markup = new RegExp(rules.markup, "gu");
  const blank = (text) => text.includes("<") ? text.replace(markup, (tag) => " ".repeat([...tag].length)) : text;
  if (rules.version === 1) return (text) => letters(lower(blank(text)));
  const unescape = unescapeWith(rules.entities), reference = new RegExp(rules.reference, "gu"), elision = new RegExp(rules.elision, "gu"), sequence = new RegExp(rules.sequence, "u");
  return (text) => {
    const plain = blank(text.includes("&") ? text.replace(reference, unescape) : text);
    // every second piece is a sequence of joined emoji
    const pieces = lower(plain.normalize("NFC").replaceAll("İ", "i")).split(sequence);
    const line = pieces.map((piece, place) => place % 2 ? piece : letters(piece)).join("").replaceAll("\ufe0f", "").normalize("NFC");
    return line.includes("'") ? line.replace(elision, " ") : line;
  };
}

/** Where the source of each character of a line begins and ends in its text, in UTF-16 units. */
function originsWith(rules, lineOf) {
  const isMark = readSet(rules.marks), isFormat = readSet(rules.formats), sizes = new Map();
  const follows = (sign) => sign !== "\u200b" && (isMark(sign) || isFormat(sign) || (sign >= "\u1160" && sign <= "\u11ff") || sign === "\uff9e" || sign === "\uff9f");
  const groups = rules.version > 1 ? [rules.reference, rules.sequence].map((pattern) => new RegExp(pattern, "gu")) : [];
  const sizeOf = (cluster) => {
    if (!sizes.has(cluster)) sizes.set(cluster, [...lineOf(cluster)].length);
    return sizes.get(cluster);
  };
  return (text, length) => {
    const signs = [...text], units = [0], inside = new Set();
    for (const sign of signs) units.push(units.at(-1) + sign.length);
    for (const group of groups) for (const match of text.matchAll(group)) for (let unit = match.index + 1; unit < match.index + match[0].length; unit++) inside.add(unit);
    const begins = signs.flatMap((sign, place) => !place || rules.version === 1 || !(inside.has(units[place]) || follows(sign)) ? [place] : []);
    const first = [], after = [];
    begins.forEach((begin, k) => {
      const end = begins[k + 1] ?? signs.length;
      for (let count = sizeOf(text.slice(units[begin], units[end])); count > 0; count--) { first.push(units[begin]); after.push(units[end]); }
    });
    if (first.length === length) return { first, after };
    // characters that compose in a way of their own: the place is then a guess
    const guess = (shift) => Array.from({ length }, (_, place) => units[Math.min(place + shift, signs.length)]);
    return { first: guess(0), after: guess(1) };
  };
}

/** A function from a text to its words, with the places text.slice(start, stop) that they come from. */
export function splitterWith(rules) {
  const lineOf = lineWith(rules), originsOf = originsWith(rules, lineOf), pattern = new RegExp(rules.word, "gu");
  return (text) => {
    const line = lineOf(text), { first, after } = originsOf(text, [...line].length), words = [];
    let unit = 0, place = 0;
    for (const match of line.matchAll(pattern)) {
      place += [...line.slice(unit, match.index)].length;
      const size = [...match[0]].length;
      words.push({ word: match[0].replaceAll("'", ""), start: first[place], stop: after[place + size - 1] });
      unit = match.index + match[0].length;
      place += size;
    }
    return words;
  };
}

/** A stemmer that counts characters, not UTF-16 units: those beyond U+FFFF are private ones while it runs. */
export function stemWith(stemmer) {
  return (word) => {
    const rare = [...word].filter((character) => character.length > 1);
    if (!rare.length) return stemmer.stemWord(word);
    const distinct = [...new Set(rare)], coded = [...word].map((part) => part.length > 1 ? String.fromCharCode(0xe000 + distinct.indexOf(part)) : part);
    return stemmer.stemWord(coded.join("")).replace(/[\ue000-\uf8ff]/g, (code) => distinct[code.charCodeAt(0) - 0xe000]);
  };
}

/** What BERT's normalization makes of a character: no accents, ideographs as words of their own, syllables of Hangul in parts. */
function normalizeWith({ spaced, replaced }) {
  const known = new Map(replaced);
  for (const [first, count] of spaced) for (let code = first; code < first + count; code++) known.set(code, ` ${String.fromCodePoint(code)} `);
  return (character) => {
    const code = character.codePointAt(0);
    return known.get(code) ?? (code >= 0xac00 && code < 0xd7a4 ? character.normalize("NFD") : character);
  };
}

/** Pieces of a word, the longest first that the vocabulary has; the unknown piece if it cannot be spelled (WordPiece). */
export function spellWith(settings) {
  const { pieces, unknown, longest } = settings, known = new Set(pieces), normalize = normalizeWith(settings);
  const clean = (word) => [...word].map(normalize).join("");
  const spellOne = (word) => {
    const characters = [...word], found = [];
    if (characters.length > longest) return [unknown];
    for (let start = 0, stop; start < characters.length; start = stop) {
      for (stop = characters.length; stop > start; stop--) {
        const piece = (start ? "##" : "") + characters.slice(start, stop).join("");
        if (known.has(piece)) { found.push(piece); break; }
      }
      if (stop === start) return [unknown];
    }
    return found;
  };
  return (word) => clean(word).split(" ").filter(Boolean).flatMap(spellOne);
}

/** A function from a text to its tokens with their places. */
export function makeTokenizer(settings, stemmer) {
  const split = splitterWith(settings.words), stopped = new Set(settings.stopped);
  const stem = stemmer ? stemWith(stemmer) : (word) => word;
  const spell = settings.pieces ? spellWith(settings.pieces) : (word) => [word];
  const known = new Map();  // tokens of the words so far
  const tokensOf = (word) => {
    if (!known.has(word)) known.set(word, stopped.has(word) ? [] : spell(stem(word)));
    return known.get(word);
  };
  return (text) => {
    const words = split(text);
    return { words, tokens: words.flatMap(({ word, start, stop }) => tokensOf(word).map((name) => ({ name, start, stop }))) };
  };
}
