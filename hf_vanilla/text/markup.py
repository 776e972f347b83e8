"""Tags, URLs, e-mail addresses, {variables} and numbers survive a translation.

The model does not see tags, URLs, addresses and variables: they are taken out of the source and put
into the translation by word alignment. Numbers stay in the source; one that the translation lacks
takes the place of the words that are aligned with it.

Where they go:

- A pair of tags encloses a run of words of the translation: those that are worth most by alignment,
  equal texts, length, and place in the sentence. A pair around all words encloses all. Pairs side
  by side share no word, so pairs stay nested.
- All else follows the translation of the nearest word before it inside its pair of tags; without
  one, it precedes the translation of the next word. What is written together with the next word
  only, such as the $ of "$ {x}", is placed by that word first.
- A pair without words is placed likewise, and what lies inside a pair stays inside.
"""

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .alignments import Spans

# Every pattern reads a text once: it does not begin again inside what it has read in vain.
# of a tag after its name: a quoted value may have < and >, unless a quote is not closed; the count
# limits how far a tag is read in vain, since others may begin inside its values
VALUE = r"""(?:"(?:[^"<]*"|[^"]*"(?=[\s/>]))|'(?:[^'<]*'|[^']*'(?=[\s/>])))"""
ATTRIBUTES = rf"(?:(?:=\s*+{VALUE}|/(?!>)|[^<>/]){{0,1000}}+|[^<>]*?)"
TAG = rf"</?[A-Za-z]{ATTRIBUTES}/?>|<!--(?:(?!<!--)[\s\S])*?-->"
# brackets belong to a URL in pairs; what is open at its end does not
GROUP = r"\([^\s<>\"()]*+\)|\{\{[^\s<>\"{}]*+\}\}|\{[^\s<>\"{}]*+\}"
URL = (
    rf"(?:(?:https?|ftp)://|www\.)(?:{GROUP}|(?!{GROUP})[^\s<>\"])*"
    rf"(?:{GROUP}|[^\s<>\".,;:!?)\]}}'])"
)
# at the start of its first word, or after a variable of VARIABLE's last kinds
ADDRESS = r"(?:(?<![\w.+-])|(?<=[%)$][sdf]))[\w.+-]++@[\w-]+(?:\.[\w-]+)+"
VARIABLE = r"\{\{[^{}]+\}\}|\$?\{[^{}]*\}|%\(\w+\)[sdf]|%(?:\d+\$)?[sdf]\b"
ITEM = re.compile("|".join((TAG, URL, ADDRESS, VARIABLE)))
ITEMS = re.compile(rf"(?<!\s)\s*+(?:(?:{ITEM.pattern})\s*+)+")
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
PART = re.compile(rf"(?<!\w){NUMBER.pattern}(?!\w)|\w+|[^\w\s]")
TAG_NAME = re.compile(rf"<(/?)([A-Za-z][\w:-]*){ATTRIBUTES}(/?)>")
REFERENCE = re.compile(r"&(?:[A-Za-z][A-Za-z\d]*|#\d+|#[xX][\dA-Fa-f]+);")


@dataclass(frozen=True)
class Item:
    """What is put into the translation.

    Attributes:
        text: as it was.
        has_space_before: white space, or nothing, was on its left, or on that of the tags there.
        has_space_after: likewise on its right.
    """

    text: str
    has_space_before: bool = True
    has_space_after: bool = True

    @property
    def is_solid(self) -> bool:
        """Whether letters beside it would change it, as those beside a URL."""
        return TAG_NAME.fullmatch(self.text) is None and self.text[-1:] != "}"


@dataclass
class Node:
    """An item, or a pair of tags with what it encloses.

    Attributes:
        items: one, or the two tags.
        first: number of the source word that follows it, or the first one inside.
        last: number of the word after it.
        children: inside.
    """

    items: list[Item]
    first: int
    last: int
    children: list["Node"] = field(default_factory=list)


@dataclass(frozen=True)
class Markup:
    """A source text and its items.

    Attributes:
        text: with them.
        plain: what is translated.
        root: all items; it has none itself.
        is_html: between the items, `&` begins a character reference, such as `&amp;`.
    """

    text: str
    plain: str
    root: Node
    is_html: bool = False

    @property
    def needs_alignment(self) -> bool:
        """Whether there is anything to put into the translation."""
        return bool(self.root.children) or NUMBER.search(self.plain) is not None

    def written(self, text: str) -> str:
        """Text of a translation as it stands between items."""
        return html.escape(text, quote=False) if self.is_html else text


def parts(text: str) -> Spans:
    """Words, numbers and single signs of a text, as characters from and to."""
    return [match.span() for match in PART.finditer(text)]


def take_out(text: str, *, is_html: bool | None = None) -> Markup:
    """Separate a text from its tags, URLs, addresses and variables.

    Args:
        text: with them.
        is_html: character references become what they stand for; None: if there is one.
    """
    if is_html is None:
        is_html = any(html.unescape(one) != one for one in REFERENCE.findall(text))
    read = html.unescape if is_html else str
    plain, found = "", []
    last = 0
    for run in ITEMS.finditer(text):
        plain += read(text[last : run.start()])
        items = list(_items(text, run))
        found += [(len(plain), item) for item in items]
        plain += _instead(text, run, items)
        last = run.end()
    plain += read(text[last:])
    blank = len(plain) - len(plain.lstrip())
    root = _tree([(at - blank, item) for at, item in found], plain.strip())
    return Markup(text, plain.strip(), root, is_html)


def _items(text: str, run: re.Match[str]) -> Iterator[Item]:
    """The items of a run; whether white space is beside one, or beside the tags next to it."""
    matches = list(ITEM.finditer(text, run.start(), run.end()))
    starts, ends = [match.start() for match in matches], [match.end() for match in matches]
    for number in range(1, len(matches)):
        if _touch(matches[number - 1], matches[number]):
            starts[number] = starts[number - 1]
    for number in reversed(range(len(matches) - 1)):
        if _touch(matches[number + 1], matches[number]):
            ends[number] = ends[number + 1]
    for match, start, end in zip(matches, starts, ends, strict=True):
        before, after = text[start - 1 : start], text[end : end + 1]
        yield Item(match.group(), not before.strip(), not after.strip())


def _touch(tag: re.Match[str], item: re.Match[str]) -> bool:
    """Whether a tag stands directly beside an item."""
    is_beside = tag.end() == item.start() or tag.start() == item.end()
    return is_beside and TAG_NAME.fullmatch(tag.group()) is not None


def _instead(text: str, run: re.Match[str], items: Sequence[Item]) -> str:
    """What stands for a run of items: a space where words or sentences would run together."""
    around = ITEM.sub("", run.group())
    start, end = run.span()
    is_between = text[start - 1 : start].isalnum() and text[end : end + 1].isalnum()
    if all(is_tag(item, "/") or is_tag(item, "") for item in items):
        return " " if around else ""
    is_apart = run.group() != run.group().lstrip() and run.group() != run.group().rstrip()
    return " " if is_apart or is_between else ""


def is_tag(item: Item, slash: str) -> bool:
    """Whether an item is the tag that opens a pair, `slash=""`, or closes one, `"/"`."""
    tag = TAG_NAME.fullmatch(item.text)
    return tag is not None and tag[1] == slash and not tag[3]


def _tree(found: list[tuple[int, Item]], plain: str) -> Node:
    """Pairs of tags with what they enclose; a tag without its other half is a single item."""
    spans = parts(plain)
    firsts, ends = [first for first, _ in spans], [end for _, end in spans]
    root = Node([], 0, len(spans))
    stack: list[tuple[str, Node]] = [("", root)]
    opened: dict[str, list[int]] = {}  # by name, where in the stack
    for at, item in found:
        tag = TAG_NAME.fullmatch(item.text)
        begin = bisect_right(ends, at)  # a word with a tag inside belongs to the pair
        following = bisect_left(firsts, at)
        if tag is not None and not tag[1] and not tag[3]:
            opened.setdefault(tag[2], []).append(len(stack))
            stack.append((tag[2], Node([item], begin, following)))
            stack[-2][1].children.append(stack[-1][1])
        elif tag is not None and tag[1] and not tag[3] and opened.get(tag[2]):
            place = opened[tag[2]][-1]
            node = stack[place][1]
            _dissolve([inner for _, inner in stack[place:]])
            for name, _ in stack[place:]:
                opened[name].pop()
            del stack[place:]
            node.items.append(item)
            node.last = max(following, node.first)
        else:
            stack[-1][1].children.append(Node([item], following, following))
    _dissolve([node for _, node in stack])
    _separate(root)
    return root


def _separate(root: Node) -> None:
    """Give a word that lies in several pairs side by side to the first of them."""
    todo = [root]
    while todo:
        last = 0
        for child in (children := todo.pop().children):
            if len(child.items) > 1:
                child.first = max(child.first, last)
                child.last = last = max(child.last, child.first)
        todo += children


def _dissolve(nodes: Sequence[Node]) -> None:
    """Make unclosed tags, each inside the one before it, single items of the first node."""
    for node in nodes[1:]:
        node.last = node.first
        nodes[0].children += node.children
        node.children = []
