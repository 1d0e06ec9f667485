"""Mutants: single lines of the source that are made wrong on purpose, to see which test notices.

A mutant turns a comparison round, moves a boundary by one, or drops a check. A hash of the seed and the mutated code
orders the candidates of a package: a change elsewhere in the source neither renames nor replaces a mutant.
"""

from __future__ import annotations

import ast
import hashlib
import io
import itertools
import re
import tokenize
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

PACKAGES = ("log", "batching", "queue", "stores", "mill", "anchoring", "messaging", "pipeline")
SOURCE = "src/millstream"
GENERATED = ("messaging/protocol/", "messaging/client/blocking.py")

DROP, COMPARE, BOUNDARY = KINDS = ("drop", "compare", "boundary")
"""The kinds take turns in this order, so that a package with few candidates of the first kind still has one."""

_TURNED: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">="), ast.GtE: (">=", "<"), ast.Gt: (">", "<="), ast.LtE: ("<=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
}  # fmt: skip
_MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_CHECK = re.compile(r"(?<!a)sync|(?<!re)lease|fence|check|verify|flush|commit")
_FENCE = re.compile(r"(?<!re)lease|fence")
_LOGGING = re.compile(r"(\w*_)?log(ger)?\.(debug|info|warning|error|exception|critical)")
_NO_CODE = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT}


class Span(msgspec.Struct, frozen=True, order=True):
    """Where code stands in a file: lines from 1, columns in characters from 0, the end excluded."""

    line: int
    column: int
    end_line: int
    end_column: int


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One line made wrong: *old* at *span* becomes *new*.

    *before* and *after* are the whole line, without its indentation. *probe* is the code that runs if and only if the
    mutation can matter: an expression, or the statement that is dropped.
    """

    id: str
    package: str
    file: str
    line: int
    kind: str
    before: str
    after: str
    function: str
    old: str
    new: str
    span: Span
    probe: Span
    digest: str


class Equivalent(msgspec.Struct, frozen=True):
    """A mutant that no test can kill, and why."""

    mutant: Mutant
    reason: str


class Plan(msgspec.Struct, frozen=True):
    """The mutants of a run, those that were replaced because they are equivalent, and those that may replace more."""

    seed: int
    each: int
    mutants: list[Mutant]
    spares: list[Mutant]
    equivalents: list[Equivalent]

    @property
    def all(self) -> list[Mutant]:
        """The mutants of the run, and the spares: to replace one later needs no further measurement."""
        return [*self.mutants, *self.spares]


class Choice(msgspec.Struct, frozen=True):
    """What ``tests/mutants.toml`` says: the seed, mutants per package, and the reason of each equivalent mutant."""

    seed: int
    each: int
    equivalent: dict[str, str] = {}


class SourceChangedError(Exception):
    """The line of a mutant is not what it was when the plan was made."""


class _Edit(NamedTuple):
    kind: str
    function: str
    span: Span
    new: str
    probe: Span


def mutated(source: str, mutant: Mutant) -> str:
    """The text of a file with *mutant* in it. Raises :class:`SourceChangedError` where its line has changed."""
    lines = source.splitlines(keepends=True)
    if len(lines) < mutant.line or lines[mutant.line - 1].strip() != mutant.before:
        raise SourceChangedError(f"{mutant.file}:{mutant.line} is no longer {mutant.before!r}: make the plan anew")
    lines[mutant.line - 1] = _changed(lines[mutant.line - 1], mutant.span, mutant.new)
    return "".join(lines)


def _changed(line: str, span: Span, new: str) -> str:
    return line[: span.column] + new + line[span.end_column :]


def probed(source: str, probes: Mapping[int, Mutant], call: str) -> str:
    """The text of a file that calls ``<call>(number)`` whenever the code of a probe runs, and else does the same.

    The number of lines stays. The result of the call must be false.
    """
    insertions = [insertion for number, mutant in probes.items() for insertion in _insertions(number, mutant, call)]
    lines = source.splitlines(keepends=True)
    for line, column, _, text in sorted(insertions, reverse=True):
        lines[line - 1] = _changed(lines[line - 1], Span(line, column, line, column), text)
    return "".join(lines)


def _insertions(number: int, mutant: Mutant, call: str) -> Iterator[tuple[int, int, tuple[int, int, int], str]]:
    """Where text goes. At one place ends come before beginnings, and of nested probes the inner one ends first."""
    probe = mutant.probe
    if mutant.kind == DROP:
        yield probe.line, probe.column, (1, 0, 0), f"{call}({number}); "
        return
    yield probe.line, probe.column, (1, -probe.end_line, -probe.end_column), f"({call}({number}) or ("
    yield probe.end_line, probe.end_column, (0, -probe.line, -probe.column), "))"


def candidates(package: str, file: str, source: str) -> list[Mutant]:
    """All mutants of the text of one *file*, which is a path from the root of the repository."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    edits = sorted(finder.edits, key=lambda edit: (edit.span, edit.kind, edit.new))
    lines = source.splitlines()
    seen: Counter[tuple[str, str, str]] = Counter()
    return [_mutant(package, file, edit, lines[edit.span.line - 1], seen) for edit in edits]


def _mutant(package: str, file: str, edit: _Edit, line: str, seen: Counter[tuple[str, str, str]]) -> Mutant:
    kind, function, span, new, probe = edit
    before, after = line.strip(), _changed(line, span, new).strip()
    seen[function, before, after] += 1
    named = "\n".join((file, function, before, after, str(seen[function, before, after])))
    digest = hashlib.sha256(named.encode()).hexdigest()
    return Mutant(
        id=f"{package}-{digest[:6]}", package=package, file=file, line=span.line, kind=kind, before=before,
        after=after, function=function, old=line[span.column : span.end_column], new=new, span=span, probe=probe,
        digest=digest,
    )  # fmt: skip


def plan(root: Path, choice: Choice) -> Plan:
    """The mutants that the seed chooses from the source below *root*."""
    made = Plan(choice.seed, choice.each, [], [], [])
    for package in PACKAGES:
        found = _candidates_of(root, package)
        unkillable = sum(mutant.id in choice.equivalent for mutant in found)
        sequence = list(itertools.islice(_sequence(found, choice.seed, _compiler(root)), 2 * choice.each + unkillable))
        _divide(sequence, choice, made)
    if len({mutant.id for mutant in made.all}) < len(made.all):
        raise ValueError(f"two mutants of seed {choice.seed} have one id: use more of the digest")
    return made


def _divide(sequence: list[Mutant], choice: Choice, made: Plan) -> None:
    """Add the mutants of a package to *made*. A spare, of the same kind if there is one, replaces an equivalent."""
    chosen, spares = sequence[: choice.each], sequence[choice.each :]
    while chosen:
        mutant = chosen.pop(0)
        if mutant.id not in choice.equivalent:
            made.mutants.append(mutant)
            continue
        made.equivalents.append(Equivalent(mutant, choice.equivalent[mutant.id]))
        if spares:
            spare = next((spare for spare in spares if spare.kind == mutant.kind), spares[0])
            spares.remove(spare)
            chosen.insert(0, spare)
    made.spares.extend(spare for spare in spares if spare.id not in choice.equivalent)


def _candidates_of(root: Path, package: str) -> list[Mutant]:
    found = []
    for path in sorted((root / SOURCE / package).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        if not file.removeprefix(f"{SOURCE}/").startswith(GENERATED):
            found += candidates(package, file, path.read_text("utf-8"))
    return found


def _compiler(root: Path) -> Callable[[Mutant], bool]:
    return lambda mutant: compiles(mutated((root / mutant.file).read_text("utf-8"), mutant))


def compiles(source: str) -> bool:
    """Whether *source* is Python; what it merely warns of is not asked."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _sequence(found: Iterable[Mutant], seed: int, is_code: Callable[[Mutant], bool]) -> Iterator[Mutant]:
    """The candidates of a package in the order of the seed: kinds take turns, and files that had none come first."""
    free = sorted(found, key=lambda mutant: _rank(seed, mutant))
    files: set[str] = set()
    for turn in itertools.cycle(KINDS):
        ordered = sorted(free, key=lambda mutant: (mutant.kind != turn, mutant.file in files))
        mutant = next(filter(is_code, ordered), None)
        if mutant is None:
            return
        yield mutant
        files.add(mutant.file)
        free = [other for other in free if (other.file, other.line) != (mutant.file, mutant.line)]


def _rank(seed: int, mutant: Mutant) -> str:
    return hashlib.sha256(f"{seed}:{mutant.package}:{mutant.digest}".encode()).hexdigest()


class _Finder(ast.NodeVisitor):
    """Finds what can be mutated in the bodies of functions: what runs at import belongs to no test."""

    def __init__(self, source: str) -> None:
        self.edits: list[_Edit] = []
        self._lines = source.splitlines(keepends=True)
        self._tokens = [
            token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in _NO_CODE
        ]
        self._starts = [token.start for token in self._tokens]
        self._names: list[str] = []
        self._functions = 0

    def _position(self, line: int, offset: int) -> tuple[int, int]:
        """Line and column in characters, of an offset in bytes as syntax trees have it."""
        return line, len(self._lines[line - 1].encode()[:offset].decode())

    def _start(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self._position(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self._position(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _span(self, node: ast.expr | ast.stmt) -> Span:
        return Span(*self._start(node), *self._end(node))

    def _add(self, kind: str, span: Span, new: str, probe: Span) -> None:
        if self._functions and span.line == span.end_line:
            self.edits.append(_Edit(kind, ".".join(self._names), span, new, probe))

    def _body(self, name: str, body: list[ast.stmt], *, is_function: bool) -> None:
        self._names.append(name)
        self._functions += is_function
        for statement in body:
            self.visit(statement)
        self._functions -= is_function
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name != "__repr__":
            self._body(node.name, node.body, is_function=True)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._body(node.name, node.body, is_function=False)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _visit_nothing(self, node: ast.AST) -> None:
        """Leave out assertions and error texts, and f-strings, whose parts have no positions before Python 3.12."""

    visit_Assert = visit_Raise = visit_JoinedStr = _visit_nothing

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if "TYPE_CHECKING" in test or "__name__" in test:
            return
        if _CHECK.search(test):
            for statement in node.body:
                if isinstance(statement, ast.Raise):
                    self._drop(statement)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            name = _dotted(call.func)
            if _CHECK.search(name.rpartition(".")[2]) or _FENCE.search(name):
                self._drop(node)
        self.generic_visit(node)

    def _drop(self, statement: ast.stmt) -> None:
        self._add(DROP, self._span(statement), "pass", self._span(statement))

    def visit_Call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        if _LOGGING.fullmatch(name):
            return
        if name == "range":
            self._move_literals(node.args)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            old, new = _TURNED[type(operator)]
            where = self._operator(old.split(), self._end(left), self._start(right))
            self._add(COMPARE, where, new, self._span(node))
            if old in _MOVED:
                self._add(BOUNDARY, where, _MOVED[old], self._span(node))
        self._move_literals(operands)
        self.generic_visit(node)

    def _operator(self, words: list[str], begin: tuple[int, int], end: tuple[int, int]) -> Span:
        between = self._tokens[bisect_left(self._starts, begin) : bisect_left(self._starts, end)]
        found = [token for token in between if token.string in words]
        return Span(*found[0].start, *found[len(words) - 1].end)

    def visit_Slice(self, node: ast.Slice) -> None:
        self._move_literals(bound for bound in (node.lower, node.upper) if bound is not None)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub):
            self._move_literals(side for side in (node.left, node.right) if _integer(side) == 1)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Add | ast.Sub) and _integer(node.value) == 1:
            self._move_literals([node.value])
        self.generic_visit(node)

    def _move_literals(self, operands: Iterable[ast.expr]) -> None:
        for operand in operands:
            literal = operand.operand if isinstance(operand, ast.UnaryOp) else operand
            number = _integer(literal)
            if number is not None:
                span = self._span(literal)
                for moved in (number - 1, number + 1) if number else (1,):
                    self._add(BOUNDARY, span, str(moved), span)


def _integer(node: ast.expr) -> int | None:
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _dotted(node: ast.expr) -> str:
    """The name that is called, as ``self._lease.renew``; what is not a name is left out."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
