//! Lists of choices with weights: `Accept` and `Accept-Encoding`.

/// Returns the choices of a list, each with its weight in thousandths.
///
/// For `gzip;q=0.5, br`, it returns `("gzip", 500)` and `("br", 1000)`. Parameters other than `q` are
/// ignored. A weight that is no number from 0 to 1 counts as 1.
pub(super) fn weights(list: &str) -> impl Iterator<Item = (&str, u16)> {
    list.split(',').map(|choice| {
        let mut parts = choice.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight =
            parts.filter_map(|part| part.split_once('=')).find(|(key, _)| key.trim().eq_ignore_ascii_case("q"));
        let weight = weight.and_then(|(_, weight)| weight.trim().parse::<f32>().ok());
        let weight = weight.filter(|weight| (0.0..=1.0).contains(weight)).unwrap_or(1.0);
        (name, (weight * 1e3) as u16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_has_its_weight() {
        let list = "gzip;q=0.5, br ; Q = 0 ,zstd;level=1;q=1.000,*;q=.25,x;q=2,y;q=NaN,";
        let expected = [("gzip", 500), ("br", 0), ("zstd", 1000), ("*", 250), ("x", 1000), ("y", 1000), ("", 1000)];
        assert!(weights(list).eq(expected));
    }
}
