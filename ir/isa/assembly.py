"""Instruction streams as text and back: one line a record, in emission order, with the HLO op of each instruction.

    ; kernel 3.map
    loop r4 = 0..11, r5 = count % 2
      000012 vector      tensor_tensor add  sbuf.f32[0:128, 512:4]@4096+2048*r5 <- ...  wait tensor>=3+2*r4  ; %add.3
    end
    while r9 != 0
    while r10 = 0..99
    branch r9 of 2
    else

An operand is ``space.type[count:stride, ...]@offset``; in SBUF and PSUM the first dimension is the partitions,
written ``first:count``; offsets and strides are bytes. Results stand before ``<-``, sources and immediates (``#1.5``)
after it, flags in braces. A wait names a stream and how many of its instructions must have finished.

``assemble`` reads what ``disassemble`` prints: all of the records, and of the debug map what the comments say.
"""

import re
from collections.abc import Iterator

from neuronx_cc.ir.isa.program import Branch, Debug, Else, End, Instr, Loop, Program, Ref, Space, Stream, Wait, While


def disassemble(program: Program) -> Iterator[str]:
    """Lines of the whole program."""
    kernel = None
    depth = 0
    number = 0
    for row, record in enumerate(program.records):
        if isinstance(record, End):
            depth -= 1
            yield f"{'  ' * depth}end"
            continue
        if isinstance(record, Else):
            yield f"{'  ' * (depth - 1)}else"
            continue
        debug = _debug_from(program, row)
        if debug.kernel != kernel:
            kernel = debug.kernel
            yield f"{'  ' * depth}; kernel {_printable(kernel)}"
        if not isinstance(record, Instr):
            yield f"{'  ' * depth}{_start(record)}"
            depth += 1
            continue
        origin = _printable(_origin(debug))
        yield f"{'  ' * depth}{number:06d} {instruction(record)}{'  ; ' if origin else ''}{origin}"
        number += 1


def _debug_from(program: Program, row: int) -> Debug:
    """Debug entry of the first instruction at record ``row`` or after it."""
    while row < len(program.records):
        record = program.records[row]
        if isinstance(record, Instr):
            return program.debug[record.debug] if record.debug < len(program.debug) else Debug("", "")
        row += 1
    return Debug("", "")


def _start(loop: Loop | While | Branch) -> str:
    if isinstance(loop, While):
        return f"while r{loop.register} = 0..{loop.count - 1}" if loop.count else f"while r{loop.register} != 0"
    if isinstance(loop, Branch):
        return f"branch r{loop.register} of {loop.cases}"
    phases = "".join(f", r{register} = count % {modulus}" for register, modulus in loop.phases)
    return f"loop r{loop.register} = 0..{loop.count - 1}{phases}"


def instruction(instr: Instr) -> str:
    """Text of one instruction, without number and comment."""
    parts = [f"{instr.stream.name.lower():<11} {' '.join((instr.op, *instr.alu))}"]
    outs = ", ".join(map(operand, instr.outs))
    ins = ", ".join([*map(operand, instr.ins), *(f"#{value}" for value in instr.imm)])
    parts.append(f"{outs} <- {ins}".strip() if ins else outs)
    if instr.flags:
        parts.append(f"{{{', '.join(sorted(instr.flags))}}}")
    if instr.waits:
        parts.append(f"wait {', '.join(map(_wait, instr.waits))}")
    return "  ".join(part for part in parts if part)


def operand(ref: Ref) -> str:
    """Text of one access pattern."""
    dims = [f"{count}:{stride}" for count, stride in ref.dims]
    if ref.space is not Space.HBM and ref.dims:
        dims[0] = f"{ref.partition}:{ref.dims[0][0]}"
    return f"{ref.space.name.lower()}.{ref.dtype}[{', '.join(dims)}]@{ref.offset}{_affine(ref.coefs)}"


def _wait(wait: Wait) -> str:
    return f"{wait.stream.name.lower()}>={wait.count}{_affine(wait.coefs)}"


def _affine(coefs: tuple[tuple[int, int], ...]) -> str:
    return "".join(f"{'+' if factor >= 0 else ''}{factor}*r{register}" for register, factor in coefs)


def _origin(debug: Debug) -> str:
    return " ".join(part for part in (f"%{debug.hlo}" if debug.hlo else "", debug.op_name, debug.place) if part)


def _printable(text: str) -> str:
    """``text`` on one line and without terminal controls: names in a file may hold anything."""
    return "".join(char if char.isprintable() else "?" for char in text)


_COEFS = r"((?:[+-]\d+\*r\d+)*)"
_LOOP = re.compile(r"loop r(\d+) = 0\.\.(\d+)((?:, r\d+ = count % \d+)*)")
_WHILE = re.compile(r"while r(\d+) (?:!= 0|= 0\.\.(\d+))")
_BRANCH = re.compile(r"branch r(\d+) of (\d+)")
_LINE = re.compile(r"(?:\d+ )?(\w+) +(\S.*)")
_OPERAND = re.compile(rf"(sbuf|psum|hbm)\.(\w+)\[([-\d:, ]*)\]@(-?\d+){_COEFS}")
_IMMEDIATE = re.compile(r"#(\S+)")
_WAIT = re.compile(rf"(\w+)>=(-?\d+){_COEFS}")
_ORIGIN = re.compile(r"(?:%(\S+))?\s*(.*?)\s*(?:(\S+):(\d+))?")


def assemble(text: str) -> Program:
    """The program that ``text`` describes. Raises ValueError with the number of a line that it cannot read."""
    program = Program()
    debug_number: dict[Debug, int] = {}
    kernel = ""
    for number, line in enumerate(text.splitlines(), 1):
        code, _, comment = line.strip().partition(";")
        code = code.strip()
        try:
            if code == "end":
                program.records.append(End())
            elif code == "else":
                program.records.append(Else())
            elif code.startswith("loop "):
                program.records.append(_parse_loop(code))
            elif code.startswith(("while ", "branch ")):
                program.records.append(_parse_region(code))
            elif code:
                debug = _parse_origin(kernel, comment.strip())
                instr = _parse_instruction(code)
                instr.debug = debug_number.setdefault(debug, len(debug_number))
                program.records.append(instr)
            elif comment.startswith(" kernel"):
                kernel = comment.removeprefix(" kernel").strip()
        except (ValueError, KeyError) as error:
            raise ValueError(f"line {number}: {error}: {line.strip()}") from None
    program.debug = list(debug_number)
    program.kernels = list(dict.fromkeys(debug.kernel for debug in program.debug))
    return program


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read {text!r}")
    return match


def _parse_loop(code: str) -> Loop:
    register, last, phases = _match(_LOOP, code).groups()
    found = re.findall(r"r(\d+) = count % (\d+)", phases)
    return Loop(int(last) + 1, int(register), tuple((int(phase), int(modulus)) for phase, modulus in found))


def _parse_region(code: str) -> While | Branch:
    if code.startswith("while"):
        register, last = _match(_WHILE, code).groups()
        return While(int(register), int(last) + 1 if last is not None else 0)
    register, cases = _match(_BRANCH, code).groups()
    return Branch(int(register), int(cases))


def _parse_instruction(code: str) -> Instr:
    stream, rest = _match(_LINE, code).groups()
    names, *parts = re.split(r" {2,}", rest)
    opcode, *alu = names.split()
    instr = Instr(opcode, Stream[stream.upper()], alu=tuple(alu))
    for part in parts:
        if part.startswith("{"):
            instr.flags = frozenset(part.strip("{}").split(", "))
        elif part.startswith("wait "):
            instr.waits = tuple(map(_parse_wait, part.removeprefix("wait ").split(", ")))
        else:
            outs, _, ins = part.partition("<-")
            sources = re.split(r", (?=[a-z#])", ins.strip()) if ins else []
            instr.outs = tuple(map(_parse_operand, re.split(r", (?=[a-z])", outs.strip()))) if outs.strip() else ()
            instr.ins = tuple(_parse_operand(source) for source in sources if not source.startswith("#"))
            instr.imm = tuple(_parse_number(source) for source in sources if source.startswith("#"))
    return instr


def _parse_operand(text: str) -> Ref:
    space_name, dtype, inside, offset, coefs = _match(_OPERAND, text).groups()
    space = Space[space_name.upper()]
    pairs = [tuple(map(int, pair.split(":"))) for pair in inside.split(", ")] if inside else []
    dims = [(count, stride) for count, stride in pairs]
    partition = 0
    if space is not Space.HBM and dims:
        partition, dims[0] = dims[0][0], (dims[0][1], 0)
    return Ref(space, dtype, int(offset), tuple(dims), partition, _parse_coefs(coefs))


def _parse_number(text: str) -> float:
    digits = _match(_IMMEDIATE, text).group(1)
    return int(digits) if re.fullmatch(r"-?\d+", digits) else float(digits)


def _parse_wait(text: str) -> Wait:
    stream, count, coefs = _match(_WAIT, text).groups()
    return Wait(Stream[stream.upper()], int(count), _parse_coefs(coefs))


def _parse_coefs(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(register), int(factor)) for factor, register in re.findall(r"([+-]\d+)\*r(\d+)", text))


def _parse_origin(kernel: str, comment: str) -> Debug:
    hlo, op_name, source_file, line = _match(_ORIGIN, comment).groups()
    return Debug(kernel, hlo or "", op_name or "", source_file or "", int(line or 0))
