#include "ddc/linalg/polar_factor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/tensors.h"
#include "linalg/minimax.h"

namespace ddc {
namespace {

/// Singular values below this times the largest one are taken for zero, in float64. The SVD leaves
/// null directions at eps * n, 1e-13 for the largest sizes in use.
constexpr double kDoubleRcond = 1e-11;
/// The same for entries that were rounded to float32. Rounding adds a matrix of independent entries
/// of relative size eps = 1.2e-7, whose singular values reach eps * sqrt(n) times the typical
/// entry: a direction that is null by the structure of the network comes out at up to 3e-6 of the
/// largest singular value (for n = 768), and would otherwise be blown up to 1. A true direction
/// that small could not be told from it.
constexpr double kFloatRcond = 3e-6;

/// Singular values that `fast` and `sharpen` take to 1, relative to the bound of their
/// normalisation.
constexpr double kLower = 1e-3;
/// Factors on the bound. Beyond their interval the polynomials grow quickly, and the next one
/// magnifies that, so the bound must not come out too small by rounding: of TF32 and bfloat16
/// products for `fast`, of float32 for `sharpen`, whose errors would otherwise reach 1.3e-2.
constexpr double kFastSafety = 1.01;
constexpr double kSharpenSafety = 1.0001;
/// The power of R of which the bound is taken.
constexpr int kBoundPower = 32;
/// Keeps divisions by the norm of a zero matrix finite.
constexpr double kTiny = std::numeric_limits<float>::min();
/// R and Q follow each other only up to rounding, which the leading coefficients (the slopes at 0)
/// multiply up in the smallest directions. At a product of 1e3 the Gram matrix is formed anew.
constexpr double kLargestGrowth = 1e3;

/// The matrices with entries of at most 1, by a power of 2, which rounds nothing.
at::Tensor rescaled(const at::Tensor& m) {
  const auto largest = m.abs().amax({-2, -1}, /*keepdim=*/true);
  // For subnormal entries the power itself would overflow, and a smaller one does.
  const auto type = m.scalar_type();
  const int lowest = type == at::kDouble ? -1021 : type == at::kHalf ? -14 : -125;
  const auto exponent = std::get<1>(at::frexp(largest.to(at::kDouble))).clamp_min(lowest);
  return m * at::pow(2.0, exponent.neg().to(at::kDouble)).to(type);
}

/// The factor of x with zeros where x has a row or column of zeros, such as the gradient of a unit that
/// is never active. Decompositions leave rounding there; as a step, it would bring the unit to life.
at::Tensor without_rounding_(const at::Tensor& factor, const at::Tensor& x) {
  return factor.mul_(x.any(-1, /*keepdim=*/true)).mul_(x.any(-2, /*keepdim=*/true));
}

at::Tensor exact_double(const at::Tensor& x) {
  const auto [u, s, vh] = at::linalg_svd(x, /*full_matrices=*/false);
  const auto kept = s > kDoubleRcond * s.amax(-1, /*keepdim=*/true);
  return without_rounding_(at::matmul(u * kept.unsqueeze(-2), vh), x);
}

/// Columns of a Gram matrix that are made in one product: what is left of them is above the diagonal.
constexpr int64_t kPanel = 192;
/// Entries of a matrix that are widened at a time.
constexpr int64_t kWidened = 262144;

/// For one matrix of float32 or narrower, of any shape. The products of such entries are exact in
/// float64, so its Gram matrix has singular values down to 1e-8 of the largest. Only a part of the matrix is
/// in float64 at a time.
at::Tensor exact_float(const at::Tensor& x) {
  const int64_t along = x.size(0) >= x.size(1) ? 0 : 1;
  const int64_t side = x.size(1 - along);
  const int64_t length = std::max<int64_t>(1, kWidened / side);
  const auto in_parts = [&](const auto& work) {
    for (int64_t begin = 0; begin < x.size(along); begin += length) {
      const auto part = x.narrow(along, begin, std::min(length, x.size(along) - begin));
      work(begin, part.to(at::kDouble).contiguous());
    }
  };
  auto gram = at::zeros({side, side}, x.options().dtype(at::kDouble));
  in_parts([&](int64_t, const at::Tensor& part) {
    const auto tall = along == 0 ? part : part.t();
    for (int64_t begin = 0; begin < side; begin += kPanel) {
      const int64_t end = std::min(begin + kPanel, side);
      gram.slice(0, begin, end)
          .slice(1, 0, end)
          .addmm_(tall.slice(1, begin, end).t(), tall.slice(1, 0, end));
    }
  });
  const auto [lambda, v] = at::linalg_eigh(gram, "L");
  const auto kept = lambda > kFloatRcond * kFloatRcond * lambda.amax();
  const auto inverse = at::where(kept, lambda, at::ones({}, lambda.options())).rsqrt().mul_(kept);
  const auto factor = at::matmul(v * inverse, v.t());
  // Decompositions leave rounding in rows and columns of zeros, such as the gradient of a unit that is never
  // active. As a step it would bring the unit to life.
  factor.mul_(gram.diagonal() > 0);
  auto result = at::empty_like(x);
  in_parts([&](int64_t begin, const at::Tensor& part) {
    result.narrow(along, begin, part.size(along))
        .copy_(along == 0 ? at::mm(part, factor) : at::mm(factor.t(), part));
  });
  return result;
}

at::Tensor sum_of_diagonal(const at::Tensor& r) {
  return r.diagonal(0, -2, -1).sum(-1, /*keepdim=*/true).unsqueeze(-1);
}

/// A bound of the largest eigenvalue of symmetric r >= 0 by trace and Frobenius norm (Wolkowicz and
/// Styan, 1980). Unlike row sums and power iterations it is the same in all orthonormal bases, so
/// that normalising by it keeps polar(A m B) = A polar(m) B.
at::Tensor wolkowicz_styan(const at::Tensor& r) {
  const auto n = static_cast<double>(r.size(-1));
  const auto sum = sum_of_diagonal(r);
  const auto variance =
      (n * r.square().sum({-2, -1}, /*keepdim=*/true) - sum.square()).clamp_min(0);
  return (sum + ((n - 1) * variance).sqrt_()).div_(n);
}

/// The same for r with trace 1 by way of r^32, given r^2. What the bound has to spare is lost at
/// the other end, where singular values fall below kLower: of r itself it can be sqrt(n) / 4 times
/// too large (Gaussian matrices), its 32nd root is right to a few percent. The powers are small
/// products.
at::Tensor largest_eigenvalue_bound(const at::Tensor& r2) {
  std::vector<at::Tensor> traces;
  auto power = r2;
  for (int exponent = 2; exponent <= kBoundPower; exponent *= 2) {
    if (exponent > 2) power = at::matmul(power, power);
    // In units of the trace, against underflow.
    traces.push_back(sum_of_diagonal(power).clamp_min_(kTiny));
    power = power / traces.back();
  }
  auto bound = wolkowicz_styan(power);
  for (size_t i = traces.size(); i-- > 0;) bound = (bound * traces[i]).sqrt_();
  // At least the mean, 1 / n. Only the zero matrix, which has no trace of 1, has to be told so.
  return bound.clamp_min_(1 / static_cast<double>(r2.size(-1)));
}

/// q(t) = sum of c[k] (t - center)^k, of which x q(x^2) is one polynomial of a composition. `slope`
/// is q(0). In powers of t itself the terms of the first polynomial of degree nine reach hundreds
/// where their sum is 0.02, which leaves three digits of float32; around the middle of the interval
/// they stay small.
struct CenteredPolynomial {
  double center;
  std::vector<double> c;
  double slope;
};

std::vector<CenteredPolynomial> centered(const std::vector<std::vector<double>>& polynomials) {
  std::vector<CenteredPolynomial> result;
  double low = 0;
  double high = 1;
  for (const auto& coefficients : polynomials) {
    CenteredPolynomial q{(low * low + high * high) / 2, coefficients, coefficients.front()};
    // Horner's scheme, over and over: each pass leaves one more coefficient around the center.
    for (size_t k = 0; k + 1 < q.c.size(); ++k) {
      for (size_t i = q.c.size() - 1; i-- > k;) q.c[i] += q.center * q.c[i + 1];
    }
    result.push_back(std::move(q));
    // The error is the largest at the ends, and is the same at both.
    const double error = std::abs(1 - evaluate_composition({coefficients}, high));
    low = 1 - error;
    high = 1 + error;
  }
  return result;
}

/// q(R), given R^2; for degree 4 with one product.
at::Tensor evaluate(const CenteredPolynomial& q, const at::Tensor& r, const at::Tensor& r2) {
  const auto& c = q.c;
  const auto add_diagonal_ = [](at::Tensor& m, double value) { m.diagonal(0, -2, -1).add_(value); };
  auto y = r.clone();
  add_diagonal_(y, -q.center);
  auto y2 = r2.add(r, -2 * q.center);
  add_diagonal_(y2, q.center * q.center);
  auto z = c[1] * y;
  add_diagonal_(z, c[0]);
  if (c.size() == 3) return z.add_(y2, c[2]);
  auto upper = (c[3] * y).add_(y2, c[4]);
  add_diagonal_(upper, c[2]);
  return z.add_(at::matmul(y2, upper));
}

/// Odd polynomials of the singular values of tall x, worked out on the small side: with R = x^T x,
/// each polynomial x q(x^2) is multiplication by Z = q(R), and R becomes Z R Z. Q collects the
/// factors.
at::Tensor gram_composition(at::Tensor x, const std::vector<CenteredPolynomial>& polynomials,
                            double safety) {
  auto r = at::matmul(x.mT(), x);
  const auto trace = sum_of_diagonal(r).clamp_min_(kTiny);
  r.div_(trace);
  auto r2 = at::matmul(r, r);
  const auto bound = largest_eigenvalue_bound(r2).mul_(safety);
  r.div_(bound);
  r2.div_(bound.square());
  x = x / (trace * bound).sqrt_();

  at::Tensor q;
  double growth = 1;
  for (size_t i = 0; i < polynomials.size(); ++i) {
    const auto z = evaluate(polynomials[i], r, r2);
    // In this order, and Q is not made symmetric: what rounding does to Q stays in step with R.
    q = q.defined() ? at::matmul(q, z) : z;
    if (i + 1 == polynomials.size()) break;
    growth *= polynomials[i].slope;
    if (growth * polynomials[i + 1].slope <= kLargestGrowth) {
      r = at::matmul(z, at::matmul(r, z));
      r = (r + r.mT()).mul_(0.5);
    } else {
      x = at::matmul(x, q);
      q = at::Tensor();
      r = at::matmul(x.mT(), x);
      growth = 1;
    }
    r2 = at::matmul(r, r);
  }
  return at::matmul(x, q);
}

at::Tensor fast(const at::Tensor& x) {
  static const auto polynomials = centered(odd_minimax_composition(kLower, 6, 5));
  return gram_composition(x, polynomials, kFastSafety);
}

at::Tensor sharpen(const at::Tensor& x) {
  static const auto polynomials = centered(odd_minimax_composition(kLower, 4, 9));
  return gram_composition(x, polynomials, kSharpenSafety);
}

/// For wide x. The iteration of Muon (K. Jordan, https://kellerjordan.github.io/posts/muon), whose
/// coefficients trade convergence for slope at 0. torch.optim.Muon does the same in bfloat16.
at::Tensor newton_schulz(at::Tensor x) {
  constexpr double kA = 3.4445;
  constexpr double kB = -4.7750;
  constexpr double kC = 2.0315;
  constexpr int kSteps = 5;
  constexpr double kEps = 1e-7;
  // Not norm + eps, as in the post: x comes with entries of about 1, a power of 2 away from the
  // input, and eps would be the one thing that depends on which.
  x = x / at::linalg_vector_norm(x, 2, {-2, -1}, /*keepdim=*/true).clamp_min_(kEps);
  for (int i = 0; i < kSteps; ++i) {
    const auto gram = at::matmul(x, x.mT());
    x = at::matmul(kB * gram + kC * at::matmul(gram, gram), x).add_(x, kA);
  }
  return x;
}

/// One matrix or a stack, in batched calls.
at::Tensor polar_factor_of(const at::Tensor& m, PolarMethod method) {
  const bool tall = m.size(-2) >= m.size(-1);
  const auto type = m.scalar_type();
  // The smaller side is the cheaper one for the Gram matrix. (Muon multiplies square matrices on
  // the left.)
  const auto solve = [&](bool wanted_tall, at::ScalarType work_type, const auto& solver) {
    const bool flip = tall != wanted_tall && m.size(-2) != m.size(-1);
    // Contiguous, so that no digit of the result depends on strides.
    const auto u = solver(rescaled((flip ? m.mT() : m).to(work_type).contiguous()));
    return (flip ? u.mT() : u).to(type).contiguous();
  };
  const auto at_least_float = type == at::kDouble ? at::kDouble : at::kFloat;
  // A float32 Gram matrix of condition number 1e3 squared has one digit left at its small end. Where
  // float64 is at hand, it is used; accelerators have to live with float32.
  const auto gram_type = m.is_cpu() ? at::kDouble : at_least_float;
  switch (method) {
    case PolarMethod::exact:
      return type == at::kDouble ? solve(true, type, exact_double) : exact_float(m.contiguous());
    case PolarMethod::fast:
      return solve(true, gram_type, fast);
    case PolarMethod::sharpen:
      return solve(true, gram_type, sharpen);
    case PolarMethod::newton_schulz:
      return solve(false, type, newton_schulz);
  }
  TORCH_CHECK(false, "unknown polar method ", static_cast<int>(method));
}

}  // namespace

double polar_flops(double rows, double cols, PolarMethod method) {
  const double side = std::min(rows, cols);
  const double cube = side * side * side;
  const double product = 2 * side * rows * cols;
  switch (method) {
    case PolarMethod::exact:
      return 1.6 * product + 11 * cube;
    case PolarMethod::fast:
      return 2 * product + 24 * 2 * cube;
    case PolarMethod::sharpen:
      return 2 * product + 20 * 2 * cube;
    case PolarMethod::newton_schulz:
      return 5 * (2 * product + 2 * cube);
  }
  return 0;
}

at::Tensor polar_factor(const at::Tensor& m, PolarMethod method) {
  TORCH_CHECK(m.dim() >= 2,
              "polar_factor needs a matrix or a stack of matrices [..., rows, cols], got ", m.dim(),
              " axes, shape ", m.sizes());
  const auto type = m.scalar_type();
  TORCH_CHECK(
      type == at::kDouble || type == at::kFloat || type == at::kHalf || type == at::kBFloat16,
      "polar_factor needs float64, float32, float16 or bfloat16, got ", type);
  const at::NoGradGuard no_grad;
  if (m.numel() == 0) return at::empty_like(m);
  const auto matrix = m.detach();
  const bool one_by_one =
      m.is_cpu() || (method == PolarMethod::exact && m.scalar_type() != at::kDouble);
  if (m.dim() == 2 || !one_by_one) return polar_factor_of(matrix, method);

  // On a CPU one matrix after the other, each on one core: batched LAPACK calls would use one core
  // for all, and batched products would leave the cache between two steps.
  const auto stack = matrix.reshape({-1, m.size(-2), m.size(-1)});
  auto result = at::empty(stack.sizes(), stack.options());
  const auto solve = [&](int64_t i) {
    const at::NoGradGuard no_grad_here;  // of this thread
    result[i].copy_(polar_factor_of(stack[i], method));
  };
  if (m.is_cpu() && stack.size(0) >= at::get_num_threads()) {
    // Each of these threads calls BLAS and LAPACK on one.
    kernels::for_each_index(stack.size(0), solve);
  } else {
    // Too few for all cores: they share each matrix.
    for (int64_t i = 0; i < stack.size(0); ++i) solve(i);
  }
  return result.view(m.sizes());
}

}  // namespace ddc
