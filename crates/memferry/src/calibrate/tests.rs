//! A quick calibration of the machine that runs the tests: what comes out is used, not judged.

use super::*;
use crate::model::Hardware;
use crate::mover::CopyMethod;

const NAME: (&str, &str) = ("calibrated", "by a test");

#[test]
fn a_calibrated_machine_is_a_profile_that_models_take() {
    let machine = Machine::discover().unwrap();
    let mut steps = 0;
    // Beside other tests even a line through times may be none; that is an answer, and not one to count on.
    let calibration = (0..20)
        .find_map(|_| {
            steps = 0;
            measure(&machine, Effort::QUICK, &mut || steps += 1).ok()
        })
        .expect("one of many tries is not disturbed");
    assert_eq!(steps, steps_count(&machine));
    for way in &calibration.ways {
        let Spread { min, mean, max } = way.core_read;
        assert!(0.0 < min && min <= mean && mean <= max, "{way:?}");
        assert!(way.latency_s.min > 0.0 && way.read > 0.0 && way.write > 0.0 && way.copy > 0.0, "{way:?}");
    }
    assert_eq!(calibration.copies.rates.len() % CopyMethod::ALL.len(), 0);
    assert!(!best_methods(&calibration.copies.rates).is_empty());

    let others = vec![parameter("filter_mb_per_s", 1000.0, "a test")];
    let calibrated = calibration.apply(machine.clone(), others, NAME).unwrap();
    let text = calibrated.profile_text(NAME.0).unwrap();
    let profile = Machine::from_profile_text("calibrated", &text).unwrap();
    assert_eq!(profile.parameters(), calibrated.parameters());
    assert_eq!(profile.facts(), calibrated.facts());
    assert!(profile.parameters().iter().all(|it| it.basis == Basis::Measured), "{text}");
    Hardware::of(&profile).unwrap();

    let checked = check(&machine, &profile, Effort::QUICK).unwrap();
    assert!(checked.len() >= 10, "{checked:?}");
    for it in &checked {
        assert!(it.predicted_s > 0.0 && it.measured_s > 0.0 && it.error().is_finite(), "{it:?}");
    }
}

#[test]
fn only_this_machine_can_be_measured() {
    let profile = Machine::two_tiers().unwrap();
    let error = measure(&profile, Effort::QUICK, &mut || ()).unwrap_err();
    assert!(matches!(error, CalibrateError::NotHere { .. }), "{error}");
    assert!(matches!(check(&profile, &profile, Effort::QUICK), Err(CalibrateError::NotHere { .. })));
}

#[test]
fn a_profile_without_figures_predicts_nothing() {
    let machine = Machine::discover().unwrap();
    let error = check(&machine, &Machine::two_tiers().unwrap(), Effort::QUICK).unwrap_err().to_string();
    assert!(error.contains("not known") || error.contains("no node"), "{error}");
}
