//! The possible texts of a path in the tree. The names in a text show the values of the tree's
//! variables (see `judge`).

use crate::judge::Seen;

/// A piece of a path.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// These names, each with a `/` before it.
    Names(Vec<u8>),
    /// One of several texts, of which at most one can begin a path. The text depends on the
    /// variable with this number. Each text comes with those values of the variable that select it,
    /// as one bit per value.
    One(usize, Vec<(u8, Vec<Part>)>),
}

/// Returns the part that is always `names`.
pub(crate) fn names(names: &str) -> Part {
    Part::Names(names.as_bytes().to_vec())
}

/// Returns a part of a path that depends on one variable. For the value `value` of the variable,
/// the part is `forms[value]`.
pub(crate) fn one(variable: usize, forms: impl IntoIterator<Item = Vec<Part>>) -> Part {
    let bit = |(value, parts): (usize, _)| (1_u8 << value, parts);
    Part::One(variable, forms.into_iter().enumerate().map(bit).collect())
}

/// Returns the claim `seen`, restricted to those values of the variables that `path` shows. Returns
/// None if no tree has such a path.
pub(crate) fn read(parts: &[Part], path: &[u8], mut seen: Seen) -> Option<Seen> {
    let rest = take(parts, path, &mut seen)?;
    rest.is_empty().then_some(seen)
}

/// Matches `parts` at the beginning of a path, and returns the rest of the path.
fn take<'p>(parts: &[Part], path: &'p [u8], seen: &mut Seen) -> Option<&'p [u8]> {
    let mut rest = path;
    for part in parts {
        rest = match part {
            Part::Names(names) => {
                let rest = rest.strip_prefix(&names[..])?;
                // The matched text must be a whole name, and not the beginning of a longer name in
                // the path.
                rest.first().is_none_or(|&next| next == b'/').then_some(rest)?
            }
            Part::One(variable, forms) => {
                let (values, rest) = forms.iter().find_map(|(values, parts)| {
                    let mut inside = *seen;
                    let rest = take(parts, rest, &mut inside)?;
                    *seen = inside;
                    Some((values, rest))
                })?;
                seen[*variable] &= values;
                rest
            }
        };
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{ANY, VARIABLES};

    #[test]
    fn path_shows_the_values_of_its_names() {
        let inner = one(1, [vec![names("/x")], vec![names("/xx")]]);
        let outer = one(0, [vec![inner, names("/m")], vec![names("/q/m")]]);
        let parts = [outer, names("/f")];
        let seen = |path: &str| {
            read(&parts, path.as_bytes(), [ANY; VARIABLES]).map(|seen| (seen[0], seen[1]))
        };
        assert_eq!(seen("/x/m/f"), Some((1, 1)));
        assert_eq!(seen("/xx/m/f"), Some((1, 2)));
        assert_eq!(seen("/q/m/f"), Some((2, ANY)));
        for wrong in ["", "/", "/x/m", "/x/m/f/", "/x/m/ff", "/y/m/f", "/x/q/m/f", "/q/m/fx"] {
            assert_eq!(seen(wrong), None, "{wrong}");
        }
    }
}
