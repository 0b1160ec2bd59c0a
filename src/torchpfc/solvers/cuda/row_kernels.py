"""One step of a solve as a Triton kernel, after the product that it begins with; a program takes a row.

The file can be imported where Triton is missing; its functions then cannot be called.
"""

from __future__ import annotations

from contextlib import suppress

from torchpfc.solvers.cuda.tiles import jit, power_below

with suppress(ImportError):
    import triton.language as tl


@jit  # gpu-only: compiled for the device
def _store_half(values, halves, factors, row, at, inside, C_SCALE: tl.constexpr):
    """Stores a row as `torchpfc.solvers.cuda.halves.Halves` wants it.

    Args:
        values: The row.
        halves: Where rows go.
        factors: Where what the product has to be multiplied by goes.
        row: Which row it is.
        at: The places of its entries.
        inside: Which of them there are.
        C_SCALE: What C is multiplied by.
    """
    largest = tl.max(tl.where(inside, tl.abs(values), 0.0), axis=0)
    power = power_below(largest)
    tl.store(halves + at, (values / power).to(tl.float16), mask=inside)
    tl.store(factors + row, power / C_SCALE)


@jit  # gpu-only: compiled for the device
def store_half(values, halves, factors, units, ALIGN: tl.constexpr, C_SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """Rows in half precision; a program takes a row.

    Args:
        values: The rows.
        halves: Where they go.
        factors: Where what the product has to be multiplied by goes.
        units: Columns, divided by ALIGN.
        ALIGN: What the number of columns is a multiple of.
        C_SCALE: What C is multiplied by.
        BLOCK: A power of two, at least the number of columns.

    Shape:
        - values, halves: $(*, n, r)$
        - factors: $(*, n)$
    """
    row = tl.program_id(0).to(tl.int64)
    r = units * ALIGN
    columns = tl.arange(0, BLOCK)
    inside = columns < r
    at = row * r + columns
    _store_half(tl.load(values + at, mask=inside, other=0.0), halves, factors, row, at, inside, C_SCALE)


@jit  # gpu-only: compiled for the device
def _load_product(product, factors, row, at, inside, HALF: tl.constexpr):
    """A row of the product with C.

    Args:
        product: The product.
        factors: What its rows have to be multiplied by.
        row: Which row it is.
        at: The places of its entries.
        inside: Which of them there are.
        HALF: Whether there are factors.
    """
    found = tl.load(product + at, mask=inside, other=0.0)
    if HALF:
        found *= tl.load(factors + row)
    return found


@jit  # gpu-only: compiled for the device
def finish_step(
    product,
    ahead,
    offset,
    last,
    limit,
    h_out,
    ahead_out,
    scale_out,
    halves,
    factors,
    floor,
    momentum,
    units,
    n,
    last_stride,
    h_stride,
    HALF: tl.constexpr,
    CAP: tl.constexpr,
    ALIGN: tl.constexpr,
    C_SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r"""All of a gradient step that is not a product; a program takes a row.

    Args:
        product: $C y$.
        ahead: The point y that the step starts from.
        offset: What the step adds, d.
        last: The iterate before.
        limit: The largest value that an entry of each row may take.
        h_out: The iterate.
        ahead_out: The point that the next step starts from.
        scale_out: What the cap scaled each row by.
        halves: Where the same point goes in half precision.
        factors: What to multiply rows of the product by; those of the next one take their place.
        floor: The smallest value of an entry.
        momentum: How far the next step starts beyond the iterate, along the last move.
        units: Columns, divided by ALIGN.
        n: Rows of each problem.
        last_stride: From one problem of the stack to the next in `last`.
        h_stride: The same in `h_out`.
        HALF: Whether products are in half precision.
        CAP: Whether there is a limit.
        ALIGN: What the number of columns is a multiple of.
        C_SCALE: What C is multiplied by in half precision.
        BLOCK: A power of two, at least the number of columns.

    Shape:
        - product, ahead, offset, ahead_out, halves: $(*, n, r)$
        - last, h_out: $(*, n, r)$, with a stride of their own
        - limit, scale_out, factors: $(*, n)$
    """
    row = tl.program_id(0).to(tl.int64)
    r = units * ALIGN
    columns = tl.arange(0, BLOCK)
    inside = columns < r
    at = row * r + columns
    own = row % n * r + columns  # within the problem
    y = tl.load(ahead + at, mask=inside, other=0.0)
    d = tl.load(offset + at, mask=inside, other=0.0)
    h = y + d - _load_product(product, factors, row, at, inside, HALF)
    h = tl.where(h < floor, floor, h)  # not a maximum, so that NaN stays NaN
    if CAP:
        largest = tl.max(tl.where(inside, h, 0.0), axis=0)
        scale = tl.load(limit + row) / tl.maximum(largest, 1.1754943508222875e-38)
        scale = tl.where(scale > 1.0, 1.0, scale)
        tl.store(scale_out + row, scale)
        h *= scale
    before = tl.load(last + row // n * last_stride + own, mask=inside, other=0.0)
    tl.store(h_out + row // n * h_stride + own, h, mask=inside)
    y = h + momentum * (h - before)
    tl.store(ahead_out + at, y, mask=inside)
    if HALF:
        _store_half(y, halves, factors, row, at, inside, C_SCALE)


@jit  # gpu-only: compiled for the device
def pull_back_step(
    base,
    product,
    h,
    scale,
    later,
    v_out,
    total,
    halves,
    factors,
    floor,
    before,
    after,
    units,
    n,
    base_stride,
    h_stride,
    scale_stride,
    v_stride,
    LAST: tl.constexpr,
    HALF: tl.constexpr,
    CAP: tl.constexpr,
    ALIGN: tl.constexpr,
    C_SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r"""All of a step of the backward pass that is not a product; a program takes a row.

    Args:
        base: What the product is taken from to give the gradient with respect to the iterate.
        product: C times that; not there in the last step, where the gradient arrives.
        h: The iterate.
        scale: What the cap scaled each row by.
        later: $u_{k+1}$, which becomes $u_k$.
        v_out: $v_k$.
        total: The sum of all $v$, to which this one is added.
        halves: Where $v_k$ goes in half precision.
        factors: What to multiply rows of the product by; those of the next one take their place.
        floor: The smallest value of an entry.
        before: The momentum before the step.
        after: The momentum after it.
        units: Columns, divided by ALIGN.
        n: Rows of each problem.
        base_stride: From one problem of the stack to the next in `base`.
        h_stride: The same in `h`.
        scale_stride: The same in `scale`.
        v_stride: The same in `v_out`.
        LAST: Whether this is the last step, the first to be gone back through.
        HALF: Whether products are in half precision.
        CAP: Whether there was a limit.
        ALIGN: What the number of columns is a multiple of.
        C_SCALE: What C is multiplied by in half precision.
        BLOCK: A power of two, at least the number of columns.

    Shape:
        - product, later, total, halves: $(*, n, r)$
        - factors: $(*, n)$
        - base, h, v_out: $(*, n, r)$, with a stride of their own
        - scale: $(*, n)$, with a stride of its own
    """
    row = tl.program_id(0).to(tl.int64)
    model = row // n
    r = units * ALIGN
    columns = tl.arange(0, BLOCK)
    inside = columns < r
    at = row * r + columns
    own = row % n * r + columns
    arriving = tl.load(base + model * base_stride + own, mask=inside, other=0.0)
    threshold = floor
    if not LAST:
        arriving -= _load_product(product, factors, row, at, inside, HALF)
    if CAP:
        s = tl.load(scale + model * scale_stride + row % n)
        threshold = floor * s
        arriving *= s
    code = tl.load(h + model * h_stride + own, mask=inside, other=0.0)
    u = tl.where(code > threshold, arriving, 0.0)
    v = (1.0 + before) * u
    if not LAST:
        v -= after * tl.load(later + at, mask=inside, other=0.0)
    tl.store(later + at, u, mask=inside)
    tl.store(v_out + model * v_stride + own, v, mask=inside)
    if LAST:
        tl.store(total + at, v, mask=inside)
    else:
        tl.store(total + at, tl.load(total + at, mask=inside, other=0.0) + v, mask=inside)
    if HALF:
        _store_half(v, halves, factors, row, at, inside, C_SCALE)


@jit  # gpu-only: compiled for the device
def conjugate_residual_step(
    product,
    h,
    scale,
    u,
    residual,
    direction,
    direction_image,
    curvature,
    halves,
    factors,
    floor,
    damping,
    units,
    FIRST: tl.constexpr,
    HALF: tl.constexpr,
    CAP: tl.constexpr,
    ALIGN: tl.constexpr,
    C_SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r"""All of a step of conjugate residuals on the support of h that is not a product; a program takes a row.

    Args:
        product: C times the residual.
        h: The code.
        scale: What the cap scaled it by in the last step.
        u: The solution so far; changed, as are the next four.
        residual: What it leaves of the right-hand side.
        direction: Where the last step went.
        direction_image: The matrix times that.
        curvature: Of the last step.
        halves: Where the residual goes in half precision.
        factors: What to multiply rows of the product by; those of the next one take their place.
        floor: The smallest value of an entry of h.
        damping: Ridge added to the system.
        units: Columns, divided by ALIGN.
        FIRST: Whether this is the first step.
        HALF: Whether products are in half precision.
        CAP: Whether there was a cap.
        ALIGN: What the number of columns is a multiple of.
        C_SCALE: What C is multiplied by in half precision.
        BLOCK: A power of two, at least the number of columns.

    Shape:
        - product, h, u, residual, direction, direction_image, halves: $(*, n, r)$
        - scale, curvature, factors: $(*, n)$
    """
    row = tl.program_id(0).to(tl.int64)
    r = units * ALIGN
    columns = tl.arange(0, BLOCK)
    inside = columns < r
    at = row * r + columns
    threshold = floor
    ridge = damping
    if CAP:
        s = tl.load(scale + row)
        threshold = floor * s
        ridge = damping + (1.0 - s) / tl.maximum(s, 1.1754943508222875e-38)
    rest = tl.load(residual + at, mask=inside, other=0.0)
    free = tl.load(h + at, mask=inside, other=0.0) > threshold
    image = tl.where(free & inside, _load_product(product, factors, row, at, inside, HALF) + ridge * rest, 0.0)
    left = tl.sum(rest * image, axis=0)
    ahead = rest
    ahead_image = image
    if not FIRST:
        # What is left once only collinear parts disagree has no curvature: stop there instead of chasing rounding.
        left = tl.where(left > 1.1920928955078125e-07 * tl.sum(rest * rest, axis=0), left, 0.0)
        ratio = left / tl.maximum(tl.load(curvature + row), 1.1754943508222875e-38)
        ahead += ratio * tl.load(direction + at, mask=inside, other=0.0)
        ahead_image += ratio * tl.load(direction_image + at, mask=inside, other=0.0)
    length = left / tl.maximum(tl.sum(ahead_image * ahead_image, axis=0), 1.1754943508222875e-38)
    closer = length * ahead
    if not FIRST:
        closer += tl.load(u + at, mask=inside, other=0.0)
    tl.store(u + at, closer, mask=inside)
    rest -= length * ahead_image
    tl.store(residual + at, rest, mask=inside)
    if HALF:
        _store_half(rest, halves, factors, row, at, inside, C_SCALE)
    tl.store(direction + at, ahead, mask=inside)
    tl.store(direction_image + at, ahead_image, mask=inside)
    tl.store(curvature + row, left)


@jit  # gpu-only: compiled for the device
def plain_step(
    product,
    h,
    offset,
    limit,
    last_peak,
    peak,
    halves,
    factors,
    floor,
    units,
    n,
    FIRST: tl.constexpr,
    OVER_BATCH: tl.constexpr,
    HALF: tl.constexpr,
    ALIGN: tl.constexpr,
    C_SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r"""All of a step without momentum that is not a product; a program takes a row.

    A cap over the whole batch is known only when all rows are done. So each step leaves h as it is before the cap, and
    the largest entry; the next one scales both h and its product by what the cap makes of that.

    Args:
        product: C times h before the cap; not there in the first step, where h is zero.
        h: The iterate before the cap; the next one takes its place.
        offset: What the step adds.
        limit: The largest value that an entry may take after the cap.
        last_peak: The largest entry of h before the cap.
        peak: The same of the next iterate; zero at first.
        halves: Where the next iterate goes in half precision.
        factors: What to multiply rows of the product by; those of the next one take their place.
        floor: The smallest value of an entry before the cap.
        units: Columns, divided by ALIGN.
        n: Rows of each problem.
        FIRST: Whether this is the first step.
        OVER_BATCH: Whether the cap compares largest entries of the whole batch of a problem, or those of each row.
        HALF: Whether products are in half precision.
        ALIGN: What the number of columns is a multiple of.
        C_SCALE: What C is multiplied by in half precision.
        BLOCK: A power of two, at least the number of columns.

    Shape:
        - product, h, offset, halves: $(*, n, r)$
        - limit, last_peak, peak: $(*)$ over the batch, $(*, n)$ otherwise
        - factors: $(*, n)$
    """
    row = tl.program_id(0).to(tl.int64)
    r = units * ALIGN
    columns = tl.arange(0, BLOCK)
    inside = columns < r
    at = row * r + columns
    cap = row
    if OVER_BATCH:
        cap = row // n
    moved = tl.load(offset + at, mask=inside, other=0.0)
    if not FIRST:
        scale = tl.load(limit + cap) / tl.maximum(tl.load(last_peak + cap), 1.1754943508222875e-38)
        scale = tl.where(scale > 1.0, 1.0, scale)
        before = tl.load(h + at, mask=inside, other=0.0)
        moved += scale * (before - _load_product(product, factors, row, at, inside, HALF))
    moved = tl.where(moved < floor, floor, moved)  # not a maximum, so that NaN stays NaN
    tl.store(h + at, moved, mask=inside)
    largest = tl.max(tl.where(inside, moved, 0.0), axis=0)
    if OVER_BATCH:
        tl.atomic_max(peak + cap, largest, sem="relaxed")
    else:
        tl.store(peak + cap, largest)
    if HALF:
        _store_half(moved, halves, factors, row, at, inside, C_SCALE)
