#pragma once

#include <vector>

namespace ddc {

/// Odd polynomials p_1, ..., p_steps of degree `degree` whose composition p_steps(...p_1(x)) takes
/// [lower, 1] close to 1. Entry i lists the coefficients of x, x^3, x^5, ... of the i-th one.
///
/// Each polynomial is the minimax one, min over p of max |1 - p(x)|, on the interval into which its
/// predecessors take [lower, 1]. That greedy choice is the best of all compositions, because the
/// image of every interval [1 - e, 1 + e] shrinks with e; it is the classical optimum for the
/// matrix sign function, here for singular values.
std::vector<std::vector<double>> odd_minimax_composition(double lower, int steps, int degree);

/// p_steps(...p_1(x)).
double evaluate_composition(const std::vector<std::vector<double>>& polynomials, double x);

}  // namespace ddc
