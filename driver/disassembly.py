"""Instruction streams as text: one line a record, in emission order, with the HLO op behind each instruction.

    ; kernel 3.map
    loop r4 = 0..11, r5 = count % 2
      000012 vector      tensor_tensor add  sbuf.f32[0:128, 512:4]@4096+2048*r4 <- ...  wait tensor>=3+2*r4  ; %add.3

An operand is ``space.type[count:stride, ...]@offset``; in SBUF and PSUM the first dimension is the partitions,
written ``first:count``; offsets and strides are bytes. A wait names a stream and how many of its instructions
must have finished.
"""

from collections.abc import Iterator

from neuronx_cc.ir.isa.program import Debug, End, Instr, Loop, Program, Ref, Space, Wait


def disassemble(program: Program) -> Iterator[str]:
    """Lines of the whole program."""
    kernel = None
    depth = 0
    number = 0
    for record in program.records:
        if isinstance(record, End):
            depth -= 1
            yield f"{'  ' * depth}end"
            continue
        if isinstance(record, Loop):
            yield f"{'  ' * depth}{_loop(record)}"
            depth += 1
            continue
        debug = program.debug[record.debug] if record.debug < len(program.debug) else Debug("", "")
        if debug.kernel != kernel:
            kernel = debug.kernel
            yield f"; kernel {kernel}"
        yield f"{'  ' * depth}{number:06d} {_instruction(record)}  ; {_origin(debug)}"
        number += 1


def _loop(loop: Loop) -> str:
    phases = "".join(f", r{register} = count % {modulus}" for register, modulus in loop.phases)
    return f"loop r{loop.register} = 0..{loop.count - 1}{phases}"


def _instruction(instr: Instr) -> str:
    parts = [f"{instr.stream.name.lower():<11} {' '.join((instr.op, *instr.alu))}"]
    outs = ", ".join(map(operand, instr.outs))
    ins = ", ".join([*map(operand, instr.ins), *(f"#{value}" for value in instr.imm)])
    parts.append(" <- ".join(part for part in (outs, ins) if part))
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
    source = f"{debug.source_file}:{debug.source_line}" if debug.source_file else ""
    return " ".join(part for part in (f"%{debug.hlo}" if debug.hlo else "", debug.op_name, source) if part)
