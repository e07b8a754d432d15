//! Ranges of versions that hold nothing, as the API server can tell: the bounds that people write, one to either side. The controller
//! reads ranges as a whole, and has the last word.

/// How a range is written: comparisons with spaces between them.
pub(super) const FORM: &str =
    "^ *(>=|<=|>|<|=)v?[0-9]{1,6}([.][0-9]{1,6}){0,2}( +(>=|<=|>|<|=)v?[0-9]{1,6}([.][0-9]{1,6}){0,2})* *$";
/// What is said of such a range.
pub(super) const HOLDS_NOTHING: &str = "expected a range with a version in it: all its comparisons have to hold at once, so the lower bound comes before the upper one";

/// The first comparison by `sign` in `range`, with `not_said` for the numbers that it leaves out, as one that can be compared: CEL has
/// no versions, but durations. `1.7.24` is read as 1000000 s, 7 s and 24 us, so each number counts for more than all that follow it.
struct Bound {
    /// Whether there is one.
    is_there: String,
    /// It.
    value: String,
}

fn bound(range: &str, sign: &str, not_said: &str) -> Bound {
    // With more digits it would be no duration any more: such a one is left to the controller.
    let first = format!("(' ' + {range} + ' ').find(' {sign}v?[0-9]{{1,3}}([.][0-9]{{1,6}}){{0,2}} ')");
    let numbers = format!("({first}.trim() + '{not_said}{not_said}').find('[0-9]+[.][0-9]+[.][0-9]+')");
    Bound {
        is_there: format!("{first} != ''"),
        value: format!("duration({numbers}.replace('.', '000000s', 1).replace('.', 's', 1) + 'us')"),
    }
}

/// The rule that the first lower bound and the first upper one leave something between them, in CEL.
pub(super) fn holds_something(range: &str) -> String {
    let (zeros, nines) = (".0", ".999999");
    let (at_least, above) = (bound(range, ">=", zeros), bound(range, ">", nines));
    let (below, at_most) = (bound(range, "<", zeros), bound(range, "<=", nines));
    let unless = |lower: &Bound, upper: &Bound, holds: &str| {
        format!("!({} && {} && {} {holds} {})", lower.is_there, upper.is_there, lower.value, upper.value)
    };
    [
        unless(&at_least, &below, ">="),
        unless(&at_least, &at_most, ">"),
        unless(&above, &below, ">="),
        unless(&above, &at_most, ">="),
    ]
    .join(" && ")
}
