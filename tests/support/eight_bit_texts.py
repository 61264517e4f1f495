"""Products of few rows with 8-bit weights, as HLO text."""


def product(dtype: str, k: int, n: int, m: int = 1, turned: bool = False, other: str = "bf16") -> str:
    """x[m, k] times w[k, n], with scales of columns. ``turned``: with the sum last in the weights."""
    w = f"{n},{k}" if turned else f"{k},{n}"
    return f"""HloModule product
ENTRY main {{
  x = {other}[{m},{k}] parameter(0)
  w = {dtype}[{w}] parameter(1)
  s = f32[{n}] parameter(2)
  wide = {other}[{w}] convert(w)
  sums = f32[{m},{n}] dot(x, wide), lhs_contracting_dims={{1}}, rhs_contracting_dims={{{int(turned)}}}
  scales = f32[{m},{n}] broadcast(s), dimensions={{1}}
  ROOT scaled = f32[{m},{n}] multiply(sums, scales)
}}"""
