"""Where tags, URLs, {variables} and numbers go in a translation: see `markup`."""

import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .alignments import Links, Spans
from .markup import NUMBER, Item, Markup, Node, is_tag, parts
from .terminology import Term

# What words are worth inside a pair of tags. Chosen on the tagged pairs of the help of LibreOffice
# that `scripts/libreoffice_help.py` writes for validation.
OUTSIDE, LINKED = -0.3, 0.5  # each word; one that is aligned with a source word of the pair
SAME_TEXT = 1.0  # as a source word of the pair; minus half of it, as one of the others
WRONG_CASE, WRONG_END = 0.6, 0.5  # a small letter for a capital; a sign for a letter at an end
OTHER_LENGTH = 0.3  # each word more or fewer than in the source
ENDS = "\"'.,;:!?)]}<>…«»“”"  # what may follow a URL directly
# what a digit after it would belong to
NUMBER_BEFORE = re.compile(r"\d[.,:]?\Z")


@dataclass(eq=False)
class Word:
    """A word, number or sign of a translation, or the words of a term.

    Attributes:
        text: as it is; None: removed.
        first: its first character in the translation.
        last: the character after it.
        source: number of the source word that is aligned with it; None: none is.
        is_term: the phrase of a term, which must stay as it is.
        has_source: of a term whose words in the source are known; its numbers translate theirs.
    """

    text: str | None
    first: int
    last: int
    source: int | None
    is_term: bool = False
    has_source: bool = False


def put_back(markup: Markup, translation: str, links: Links, terms: Sequence[Term] = ()) -> str:
    """The translation with all items; of an empty one, the items and the numbers.

    A source without words, such as `&nbsp;`, stays as it is.

    Args:
        markup: of the source.
        translation: of its plain text.
        links: between the `parts` of both, at most one for each part of the translation.
        terms: of the plain text. Their phrases stay as they are, without items inside, and the
            numbers that they translate are not written again.
    """
    if not markup.plain:
        return markup.text.strip()
    source_spans = parts(markup.plain)
    words, covered = _words(source_spans, translation, links, terms)
    texts = [markup.plain[a:b] for a, b in source_spans]
    numbers = [i for i, text in enumerate(texts) if NUMBER.fullmatch(text) and i not in covered]
    missing = _keep_numbers(texts, numbers, words)
    root = Node([], 0, markup.root.last, [*markup.root.children, *missing])
    return _joined(translation, words, _gaps(root, words, texts), markup.written)


def _words(
    source_spans: Spans, translation: str, links: Links, terms: Sequence[Term]
) -> tuple[list[Word], set[int]]:
    """The words of a translation, those of a term as one, and the source words of these terms."""
    spans = parts(translation)
    source_of = {target: source for source, target in links}
    words: list[Word] = []
    covered: set[int] = set()
    last = 0
    for target, source in _term_ranges(source_spans, spans, source_of, translation, terms):
        covered.update(source)
        if words and target.start < last:  # terms overlap
            last = max(last, target.stop)
            words[-1].last = spans[last - 1][1]
            words[-1].has_source |= bool(source)
            continue
        words += [Word(None, *spans[t], source_of.get(t)) for t in range(last, target.start)]
        last = target.stop
        own = source.start if source else source_of.get(target.start)
        first, end = spans[target.start][0], spans[last - 1][1]
        words.append(Word(None, first, end, own, is_term=True, has_source=bool(source)))
    words += [Word(None, *spans[t], source_of.get(t)) for t in range(last, len(spans))]
    for word in words:
        word.text = translation[word.first : word.last]
    return words, covered


def _term_ranges(
    source_spans: Spans,
    spans: Spans,
    source_of: dict[int, int],
    translation: str,
    terms: Sequence[Term],
) -> list[tuple[range, range]]:
    """The words of terms in the translation, in their order, each with those of the source.

    Each term takes a place of its own; of several, one that is aligned with it.
    """
    found = []
    free = {
        term.target: [_overlap(spans, *place) for place in term.places(translation)]
        for term in terms
    }
    for term in terms:
        source, places = _overlap(source_spans, term.first, term.last), free[term.target]
        if places:
            best = max(places, key=lambda one: any(source_of.get(t) in source for t in one))
            places.remove(best)
            found.append((best, source))
    return sorted(found, key=lambda one: (one[0].start, one[0].stop))


def _overlap(spans: Spans, first: int, last: int) -> range:
    """Numbers of the spans that have characters from `first` to `last`."""
    start = bisect_left(spans, first, key=lambda span: span[1] - 1)
    return range(start, max(start, bisect_left(spans, last, key=lambda span: span[0])))


def _keep_numbers(texts: list[str], numbers: list[int], words: list[Word]) -> list[Node]:
    """Write the numbers of the source that the translation lacks over the words aligned with them.

    Args:
        texts: the source words.
        numbers: which of them must be kept.
        words: of the translation; changed.

    Returns:
        Those that no word is aligned with; a sign is not written over.
    """
    kept = _kept_numbers(texts, numbers, words)
    taken, of_source = set(kept.values()), defaultdict(list)
    for word in words:
        is_free = not word.is_term and word not in taken
        if is_free and word.text is not None and word.text[0].isalnum():
            of_source[word.source].append(word)
    missing = []
    for i in numbers:
        own = of_source[i]
        if i in kept:
            for word in own:  # written twice
                word.text = None if word.text == texts[i] else word.text
        elif own:
            for word in own:
                word.text = None
            own[0].text = texts[i]
        else:
            missing.append(Node([Item(texts[i])], i, i))
    return missing


def _kept_numbers(texts: list[str], numbers: list[int], words: list[Word]) -> dict[int, Word]:
    """Numbers of the source that the translation has, with their words: those aligned first."""
    kept: dict[int, Word] = {}
    needed = set(numbers)
    others: dict[str, deque[Word]] = defaultdict(deque)  # by text
    for word in words:
        assert word.text is not None
        i = word.source
        if i in needed and i not in kept and word.text == texts[i] and not word.is_term:
            kept[i] = word
        elif not word.has_source:
            for first, last in parts(word.text):
                others[word.text[first:last]].append(word)
    for i in numbers:
        if i not in kept and others[texts[i]]:
            kept[i] = others[texts[i]].popleft()
    return kept


# --- items --------------------------------------------------------------------------------------


def _gaps(root: Node, words: list[Word], texts: list[str]) -> list[list[Item]]:
    """The items before each word of the translation and after the last one."""
    gaps: list[list[Item]] = [[] for _ in range(len(words) + 1)]
    todo = [(root, (0, len(words)), False)]
    while todo:
        node, (first, last), is_behind = todo.pop()
        if is_behind:
            gaps[last] += node.items[1:]
            continue
        gaps[first] += node.items[:1]
        todo.append((node, (first, last), True))
        if node.children:
            placed = _placed(node, (first, last), words, texts)
            todo += [(child, inside, False) for child, inside in reversed(placed)]
    return gaps


def _placed(
    node: Node, inside: tuple[int, int], words: list[Word], texts: list[str]
) -> list[tuple[Node, tuple[int, int]]]:
    """The children of a node in the order of the translation.

    Args:
        node: with children.
        inside: words of the translation, from and to, that it encloses.
        words: all of the translation.
        texts: the source words.

    Returns:
        Each child with the words that it encloses.
    """
    targets = defaultdict(list)  # by source word
    for t in range(*inside):
        if (source := words[t].source) is not None:
            targets[source].append(t)
    aligned = sorted(targets)
    ranges = _ranges(node, inside, words, texts)
    runs = list(ranges.values())
    for number, child in enumerate(node.children):
        if number not in ranges:
            gap = _point(child, node, inside, targets, aligned)
            for first, last in runs:
                gap = last if first < gap < last else gap
            ranges[number] = gap, gap
    order = sorted(ranges, key=lambda number: (*ranges[number], number))
    return [(node.children[number], ranges[number]) for number in order]


def _ranges(
    node: Node, inside: tuple[int, int], words: list[Word], texts: list[str]
) -> dict[int, tuple[int, int]]:
    """The words that pairs of tags enclose, by their numbers among the children of a node.

    The pair whose best words are worth most takes them first; a pair for which none are left gets
    none. One around all source words of the node encloses all of its translation.
    """
    pairs = {i: child for i, child in enumerate(node.children) if child.first < child.last}
    for i, child in pairs.items():
        if (child.first, child.last) == (node.first, node.last):
            return {i: inside}
    if inside[0] == inside[1]:
        return {}
    taken = np.zeros(inside[1] - inside[0])  # -inf: a word of another pair

    def best(i: int) -> tuple[float, int, int]:
        child = pairs[i]
        share = ((child.first + child.last) / 2 - node.first) / (node.last - node.first)
        own = texts[child.first : child.last]
        return _best_run(own, words[slice(*inside)], values[i] + taken, share * len(taken))

    in_pairs = {source for child in pairs.values() for source in range(child.first, child.last)}
    values = {
        i: _values(child, in_pairs, words[slice(*inside)], texts) for i, child in pairs.items()
    }
    ranges = {}
    for i in sorted(pairs, key=lambda i: -best(i)[0]):
        worth, first, last = best(i)
        if worth == -np.inf:
            break
        taken[first:last] = -np.inf
        ranges[i] = inside[0] + first, inside[0] + last
    return ranges


def _best_run(
    own: list[str], words: list[Word], values: np.ndarray, middle: float
) -> tuple[float, int, int]:
    """The words that are worth most inside a pair: their worth, from and to.

    Args:
        own: the source words of the pair.
        words: of the translation.
        values: of each word inside the pair; -inf: must stay outside.
        middle: of the pair, if all words kept their order.
    """
    texts = [word.text or " " for word in words]
    width = min(len(texts), 3 * len(own) + 3)
    first = np.arange(len(texts))[:, None]
    last = first + np.arange(1, width + 1)
    opens, closes = own[0][0], own[-1][-1]
    starts = [
        -WRONG_CASE * (opens.isupper() and not text[0].isupper())
        - WRONG_END * (text[0].isalnum() != opens.isalnum())
        for text in texts
    ]
    beyond = np.full(width, -np.inf)  # the end
    worth = np.append(values, beyond)[last - 1]
    worth = np.column_stack((starts, worth)).cumsum(axis=1)[:, 1:]
    is_other = [text != "…" and text[-1].isalnum() != closes.isalnum() for text in texts]
    distance = abs((first + last) / 2 - middle) / len(texts)
    length = OTHER_LENGTH * abs(last - first - len(own))
    found = worth - WRONG_END * np.append(is_other, beyond == 0)[last - 1] - distance - length
    best = found.size - 1 - int(found[::-1, ::-1].argmax())  # the last of equal ones
    row, column = divmod(best, width)
    return float(found[row, column]), row, row + column + 1


def _values(
    node: Node, in_pairs: Collection[int], words: list[Word], texts: list[str]
) -> np.ndarray:
    """What each word of the translation is worth inside a pair: by its link, and by its text."""
    own = set(texts[node.first : node.last])
    others = {*texts[: node.first], *texts[node.last :]} - own
    values = []
    for word in words:
        value = OUTSIDE + SAME_TEXT * ((word.text in own) - (word.text in others) / 2)
        if word.source is not None and node.first <= word.source < node.last:
            value += LINKED
        elif word.source in in_pairs:
            value -= LINKED
        values.append(value)
    return np.array(values)


def _point(
    node: Node,
    parent: Node,
    inside: tuple[int, int],
    targets: dict[int, list[int]],
    aligned: list[int],
) -> int:
    """The gap of what encloses no aligned words.

    Args:
        node: of the item.
        parent: encloses it.
        inside: words of the translation that the parent encloses.
        targets: of these, those aligned with each source word.
        aligned: these source words, sorted.
    """
    place = bisect_left(aligned, node.first)
    before, after = aligned[max(place - 1, 0) : place], aligned[place : place + 1]
    before = [source for source in before if source >= parent.first]
    after = [source for source in after if source < parent.last]
    item = node.items[0]
    is_with_next = item.has_space_before and not item.has_space_after
    if before and not (is_with_next and after == [node.first]):
        return targets[before[0]][-1] + 1
    return targets[after[0]][0] if after else inside[1]


# --- text ---------------------------------------------------------------------------------------


def _joined(
    translation: str,
    words: list[Word],
    gaps: Sequence[Sequence[Item]],
    written: Callable[[str], str],
) -> str:
    """The text of all words, as they are `written`, and items."""
    text, end = "", 0
    same = 0  # so many last characters are those of the translation
    for place, word in enumerate(words):
        items, is_same = gaps[place], word.text == translation[word.first : word.last]
        space = translation[end : word.first] if text else ""
        end = word.last
        if items:
            following = (other.text for other in words[place:] if other.text)
            text += _gap(space, items, text[-1:], next(following, "")[:1])
            same = 0
        if word.text is None:
            same = 0
            continue
        text += "" if items else space
        same = same + len(space) if is_same else 0
        number = NUMBER_BEFORE.search(text[-2:]) if word.text[0].isdigit() else None
        if number is not None and len(number.group()) > same:  # it would be another number
            text, same = text + " ", 0
        text += written(word.text)
        same += len(word.text) if is_same else 0
    return text + _gap("", gaps[-1], text[-1:], "")


def _gap(space: str, items: Sequence[Item], before: str, after: str) -> str:
    """White space and items between two words; as in the source, where both are at hand.

    Args:
        space: between the words.
        items: in their order.
        before: character on the left; empty at the start.
        after: character on the right; empty at the end.
    """
    if not items:
        return space
    text, first, last = items[0].text, items[0], items[-1]
    has_space = False
    for left, right in pairwise(items):
        is_apart = left.has_space_after or right.has_space_before
        is_apart &= not is_tag(left, "") and not is_tag(right, "/")
        is_apart |= left.is_solid and right.is_solid
        text += " " * is_apart + right.text
        has_space |= is_apart
    is_opening, is_closing = is_tag(last, ""), is_tag(first, "/")
    joins_left = before.isalnum() and (first.is_solid or (bool(space) and not is_closing))
    joins_right = after.isalnum() and bool(space) and not is_opening
    joins_right |= last.is_solid and bool(after) and after not in ENDS
    if before and (joins_left or (first.has_space_before and (space or not is_tag(first, "")))):
        text, has_space = " " + text, True
    if after and (joins_right or (last.has_space_after and (space or after.isalnum()))):
        text, has_space = text + " ", True
    if space and before and after and not has_space:
        return space + text if is_opening else text + space
    return text
