"""Rows that torch's samples reach seldom or for easy values: uneven parts, empty bags, NaN, negative arguments."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import neuronx_cc.torch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
NAN = float("nan")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def agrees(function, *values, absolute=1e-5):
    """Values of both, and gradients where an argument wants one."""
    found = []
    for call in (function, torch.compile(function, backend="neuron", fullgraph=True)):
        given = [value.detach().clone().requires_grad_(value.requires_grad) for value in values]
        results = call(*given)
        results = results if isinstance(results, tuple) else (results,)
        wanted = [each for each in results if each.requires_grad]
        if wanted:
            sum(each.abs().square().sum() for each in wanted).backward()
        found.append([*(each.detach() for each in results), *(each.grad for each in given)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=absolute, equal_nan=True)


@pytest.mark.parametrize("sizes", [(7, 4), (5, 3), (6, 7), (1, 1)])
def test_adaptive_max_pooling(sizes):
    x = torch.randn(2, 3, 7, 11, requires_grad=True)
    agrees(lambda x: F.adaptive_max_pool2d(x, sizes, return_indices=True), x)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients_of_adaptive_pooling_in_space(batch):
    x = torch.randn(*batch, 3, 8, 7, 6, requires_grad=True)
    compiled = torch.compile(F.adaptive_avg_pool3d, backend="neuron", fullgraph=True)
    found, wanted = (
        torch.autograd.grad(each(x, (5, 7, 3)).square().sum(), x)[0] for each in (compiled, F.adaptive_avg_pool3d)
    )
    torch.testing.assert_close(found, wanted)


def test_pooling_and_its_inverse():
    def function(x):
        values, places = F.max_pool2d(x, 2, return_indices=True)
        return (
            F.max_unpool2d(values, places, 2),
            F.adaptive_max_pool3d(x[None], (2, 3, 5)),
            F.adaptive_max_pool1d(x[0], 5),
        )

    agrees(function, torch.randn(2, 3, 6, 8, requires_grad=True))


def test_sums_of_numbers_alone():
    """NaN counts for nothing, in sums, means and their gradients."""
    x = torch.tensor([[2.0, NAN, -1.0], [NAN, NAN, NAN], [0.5, 1.0, NAN]], requires_grad=True)
    agrees(lambda x: (x.nansum(), x.nansum(1), x.nansum((0, 1), keepdim=True), x.nanmean(0)), x)
    agrees(lambda x: x.to(torch.int32).nansum(0), torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("shapes", [((5, 4), (5, 4)), ((4,), (5, 4)), ((5, 4), (4,)), ((5, 1), (1, 4))])
def test_masked_scatter(shapes):
    """Either of the array and the mask is broadcast; gradients go to what was taken."""
    x, mask = torch.randn(shapes[0], requires_grad=True), torch.randn(shapes[1]) > 0.2
    agrees(lambda x, source, mask: x.masked_scatter(mask, source), x, torch.randn(7, 4, requires_grad=True), mask)


@pytest.mark.parametrize("shape", [(0, 6), (2, 6, 0), (2, 6), (2, 6, 5)])
def test_group_norm_of_few_elements(shape):
    agrees(lambda x: F.group_norm(x, 3), torch.randn(shape))


def test_gradients_of_what_is_flat():
    agrees(lambda x: x.sgn(), torch.randn(5, requires_grad=True))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_bags(mode, padding):
    indices = torch.tensor([1, 2, 2, 4, 0, 2, 6])
    offsets = torch.tensor([0, 3, 3, 5])  # the second is empty
    table = torch.randn(7, 5, requires_grad=True)

    def function(table, indices, offsets):
        return F.embedding_bag(indices, table, offsets, mode=mode, padding_idx=padding)

    agrees(function, table, indices, offsets)


def test_bags_with_weights_that_end_by_an_offset():
    def function(table, weights):
        indices, offsets = torch.tensor([1, 2, 2, 4]), torch.tensor([0, 1, 4])
        return F.embedding_bag(indices, table, offsets, None, 2, False, "sum", False, weights, True)

    agrees(function, torch.randn(7, 3, requires_grad=True), torch.randn(4, requires_grad=True))


def test_medians_and_modes():
    x = torch.tensor([[3.0, NAN, 1, 3], [NAN, NAN, NAN, NAN], [2, 2, 1, 1], [5, 4, 4, NAN]])

    def function(x):
        return x.nanmedian(1).values, x.nanmedian(), x.median(0).values, x.nanmedian(0, True).values

    agrees(function, x)
    agrees(lambda x: (*x.nanmedian(1), *x.median(1)), torch.tensor([[3.0, NAN, 1, 4, 2], [5, 4, 3, 2, 1]]))
    whole = torch.tensor([[3, 1, 3, 1], [7, 7, 7, 9], [0, 1, 2, 3]])
    agrees(lambda x: (*x.mode(1), x.mode(0, True).values), whole)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_derivatives_of_digamma(n):
    agrees(lambda x: torch.special.polygamma(n, x), torch.tensor([-7.3, -2.5, -0.4, 0.1, 0.5, 0.7, 3.0, 25.0]))


def test_digamma_of_zeros():
    agrees(lambda x: (torch.digamma(x), torch.special.polygamma(0, x)), torch.tensor([0.0, -0.0, 1.0, -1.0, -2.5]))
    agrees(torch.digamma, torch.tensor([True, False]))


def test_functions_of_large_values():
    agrees(lambda x: (torch.special.erfcx(x), torch.special.spherical_bessel_j0(x)), torch.tensor([-3.0, 0, 5, 12, 80]))


def test_solutions_from_factors():
    def function(a, b):
        factors, pivots = torch.linalg.lu_factor(a)
        low = torch.linalg.cholesky(a @ a.mT + torch.eye(4))
        return (
            torch.linalg.lu_solve(factors, pivots, b),
            torch.linalg.lu_solve(factors, pivots, b, adjoint=True),
            torch.linalg.lu_solve(factors, pivots, b.mT, left=False),
            *torch.lu_unpack(factors, pivots),
            torch.cholesky_solve(b, low),
            torch.cholesky_solve(b, low.mT, upper=True),
            torch.cholesky_inverse(low),
        )

    agrees(function, torch.randn(2, 4, 4), torch.randn(2, 4, 3))


def test_places_within_arrays():
    def function(x, y):
        return (
            torch.diagonal_scatter(x, y, 1, 0, 2),
            torch.nonzero_static(x > 0, size=5),
            x.index_reduce(1, torch.tensor([0, 2, 0]), x, "mean"),
            x.index_reduce(1, torch.tensor([0, 2, 0]), x, "amax", include_self=False),
        )

    agrees(function, torch.randn(3, 3, 4), torch.randn(3, 3))
    agrees(
        F.bilinear, torch.randn(5, 3, requires_grad=True), torch.randn(5, 2), torch.randn(4, 3, 2, requires_grad=True)
    )


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (lambda x: x.nonzero(), "nonzero_static"),
        (lambda x: x[x > 0], "torch.where"),
        (lambda x: x.unique(), "neighbours"),
    ],
    ids=["nonzero", "mask", "unique"],
)
def test_results_whose_shape_depends_on_values_are_refused_with_the_remedy(function, remedy):
    with (
        pytest.raises(Exception, match=remedy),
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True),
    ):
        torch.compile(function, backend="neuron", fullgraph=True)(torch.randn(5))


def test_eigenvalues_of_general_matrices():
    x = torch.randn(2, 5, 5)
    call = torch.compile(lambda x: torch.linalg.eig(x), backend="neuron", fullgraph=True)
    values, vectors = call(x)
    torch.testing.assert_close(x.to(vectors.dtype) @ vectors, vectors * values[:, None], rtol=1e-3, atol=1e-4)
    assert (values.sum(-1).real - x.diagonal(dim1=1, dim2=2).sum(-1)).abs().max() < 1e-4


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, float("inf")])
def test_distances(p):
    x = torch.randn(4, 3)
    x[1] = x[0]  # without a distance, and without a gradient
    x.requires_grad_()
    agrees(lambda x, y: (torch.pdist(x, p), torch.cdist(x, y, p)), x, torch.randn(5, 3, requires_grad=True))


def test_rows_no_longer_than():
    indices = torch.tensor([0, 2, 2])
    agrees(lambda table: (F.embedding(indices, table, max_norm=1.0), table * 1), torch.randn(4, 5) * 3)


@pytest.mark.parametrize("hermitian", [False, True])
def test_pseudo_inverses(hermitian):
    x = torch.randn(2, 4, 3 + hermitian)  # of a Hermitian one the lower triangle is read
    agrees(lambda x: torch.linalg.pinv(x, rtol=1e-3, hermitian=hermitian), x)


def test_constants_within_the_function():
    agrees(lambda x: x * torch.tensor([1.0, 2, 3]) + torch.signal.windows.hann(3), torch.ones(3))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_images_at_the_places_of_a_grid(mode, padding):
    generator = torch.Generator().manual_seed(3)
    for sizes in [(4, 5)] if mode == "bicubic" else [(4, 5), (3, 1, 4)]:
        x = torch.randn(2, 3, *sizes, generator=generator)
        grid = torch.rand(2, *[2] * len(sizes), len(sizes), generator=generator) * 3 - 1.5
        for aligned in (False, True):
            agrees(
                lambda x, grid, aligned=aligned: F.grid_sample(x, grid, mode, padding, aligned),
                x.clone().requires_grad_(),
                grid.clone().requires_grad_(),
                absolute=1e-4,  # cubic weights of one element sum to 1, their slopes to 0
            )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_sizes_without_aliasing(mode):
    for have, want in (((8, 7), (3, 5)), ((4, 5), (9, 7)), ((6, 5), (6, 3))):
        for aligned in (False, True):
            torch._dynamo.reset()  # torch itself asserts where it traces this with sizes as symbols
            agrees(
                lambda x, want=want, aligned=aligned: F.interpolate(x, want, None, mode, aligned, antialias=True),
                torch.randn(1, 2, *have, requires_grad=True),
            )


def test_histograms():
    x = torch.rand(40, generator=torch.Generator().manual_seed(2))
    pairs = x.reshape(-1, 2)
    agrees(lambda x: tuple(torch.histogram(x, 7)) + tuple(torch.histogram(x, 5, range=(0.25, 0.75), density=True)), x)
    agrees(lambda x, edges: torch.histogram(x, edges).hist, x, torch.tensor([0.0, 0.1, 0.5, 1.0]))
    agrees(lambda x: torch.histogramdd(x, [3, 4], range=[0.0, 1.0, 0.0, 0.5], weight=x[:, 0]).hist, pairs)


KINDS = [
    f"{shifted}chebyshev_polynomial_{letter}" for shifted in ("", "shifted_") for letter in "tuvw"
] + ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]  # fmt: skip


def test_polynomials():
    x = torch.tensor([-1.0, -0.4, 0.0, 0.3, 1.0, 1.5])
    degrees = torch.tensor([[-1.0], [0], [1], [2], [5]])
    agrees(lambda x, degrees: tuple(getattr(torch.special, kind)(x, degrees) for kind in KINDS), x, degrees)


GROUPED = {
    "rows": ((24, 16), (3, 16, 8)),
    "terms": ((16, 24), (24, 8)),
    "columns": ((3, 16, 8), (8, 24)),
    "batches": ((3, 16, 8), (3, 8, 24)),
}


@pytest.mark.parametrize("form", GROUPED)
@pytest.mark.parametrize("ends", [(8, 8, 24), (0, 0, 24), (8, 16, 24)])
def test_products_by_group(form, ends):
    x, y = (torch.randn(shape, dtype=torch.bfloat16) for shape in GROUPED[form])
    offs = None if form == "batches" else torch.tensor(ends, dtype=torch.int32)

    def function(x, y):
        return torch.nn.functional.grouped_mm(x, y, offs=offs)

    found = torch.compile(function, backend="neuron", fullgraph=True)(x, y)
    torch.testing.assert_close(found, function(x, y), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("shapes", [((1, 4, 5), (0, 3, 5)), ((2, 4, 5), (1, 3, 5)), ((1, 4, 5), (1, 0, 5))])
def test_gradients_of_distances_of_no_rows(shapes):
    given = [torch.randn(shape) for shape in shapes]
    gradients = []
    for function in (torch.cdist, torch.compile(torch.cdist, backend="neuron")):
        leaves = [each.clone().requires_grad_() for each in given]
        function(*leaves).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*gradients)


def test_what_only_checks_read_is_left_out():
    """``torch._check(lengths.max().item() <= 5)`` reads a value of the run, and decides nothing."""

    class Checked(torch.nn.Module):
        def forward(self, x, lengths):
            torch._check(lengths.max().item() <= 5)
            return x * lengths

    x, lengths = torch.randn(3), torch.tensor([1, 2, 5])
    found = neuronx_cc.torch.trace(Checked(), (x, lengths))(x, lengths)
    torch.testing.assert_close(found, x * lengths)


@pytest.mark.parametrize("span", [(), (0, 0), (2, 2), (1, 3)])
@pytest.mark.parametrize("values", [[], [[]], [1.0, 2.0, 3.0, 2.5], [2.0, 2.0]])
def test_histograms_of_few_values(values, span):
    agrees(lambda x: torch.histc(x, 3, *span), torch.tensor(values))


@pytest.mark.parametrize("correction", [0, 0.5, 1.3, 2, -1, 4, 4.5, True, False])
def test_variances_with_corrections_of_any_number(correction):
    x = torch.randn(3, 4, dtype=torch.float32).requires_grad_(not isinstance(correction, bool) and correction < 4)

    def moments(x):
        if isinstance(correction, bool):
            return x.var(1, correction), x.std(correction), torch.var_mean(x, 0, correction)[0]
        return tuple(kind(x, 1, correction=correction) for kind in (torch.var, torch.std)) + torch.var_mean(
            x, (0, 1), correction=correction, keepdim=True
        )

    agrees(moments, x)
