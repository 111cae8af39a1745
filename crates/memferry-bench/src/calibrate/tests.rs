//! A quick calibration of the machine that runs the tests. The results are used, not judged.

use std::time::Duration;

use memferry::internals::{CopyMethod, Hardware};

use super::*;

const NAME: (&str, &str) = ("calibrated", "by a test");

#[test]
fn a_calibrated_machine_is_a_profile_that_models_take() {
    let machine = Machine::discover().unwrap();
    let mut steps = 0;
    // Other tests may disturb the times so much that no line fits them; that error is accepted.
    let effort = SamplingPlan { limit: Duration::MAX, ..SamplingPlan::QUICK };
    let mut calibrator = Calibrator::new(&machine, effort, false).unwrap();
    let calibration = (0..20)
        .find_map(|_| {
            steps = 0;
            calibrator.pass(&mut || steps += 1).ok()
        })
        .expect("one of many tries is not disturbed");
    assert_eq!(steps, calibrator.steps_count());
    assert_eq!((calibration.sampling.passes, calibration.sampling.samples.0), (1, 2));
    let Devices { costs, diagnostics } = &calibration.devices;
    assert!(!costs.is_empty() || !diagnostics.is_empty(), "no device, and no reason");
    for way in &calibration.paths {
        let Spread { min, mean, max } = way.core_read;
        assert!(0.0 < min && min <= mean && mean <= max, "{way:?}");
        assert!(way.latency_s.min > 0.0 && way.read > 0.0 && way.write > 0.0 && way.copy > 0.0, "{way:?}");
    }
    assert_eq!(calibration.copies.rates.len() % CopyMethod::ALL.len(), 0);
    assert!(!best_methods(&calibration.copies.rates).is_empty());

    let others = vec![parameter("filter_mb_per_s", 1000.0, "a test")];
    let rate = memferry::topology::ReadRate { size_bytes: 4096, depth: 1, mb_per_s: 40.0 };
    let storage = Storage::new("/data".into(), 1e5, vec![rate], format!("{}: a test", NAME.0)).unwrap();
    let calibrated = calibration.apply(machine.clone(), others, vec![storage], NAME).unwrap();
    let text = calibrated.profile_text(NAME.0).unwrap();
    let profile = Machine::from_profile_text("calibrated", &text).unwrap();
    assert_eq!(profile.parameters(), calibrated.parameters());
    assert_eq!(profile.facts(), calibrated.facts());
    assert_eq!((profile.storage().len(), profile.storage()), (1, calibrated.storage()));
    assert_eq!(profile.copy_methods(), Some(calibration.methods), "{text}");
    assert!(profile.parameters().iter().all(|it| it.basis == Basis::Measured), "{text}");
    assert!(profile.references()[NAME.0].contains("best of 1 passes with 2"), "{text}");
    Hardware::of(&profile).unwrap();

    let (one, other) = (calibrator.check().unwrap(), calibrator.check().unwrap());
    let both = one.clone().or_better(other.clone());
    let [one, other, both] = [one, other, both].map(|check| check.against(&profile).unwrap());
    for ((one, other), both) in one.iter().zip(&other).zip(&both) {
        assert_eq!(both.measured_s, one.measured_s.min(other.measured_s));
    }
    let checked = both;
    assert!(checked.len() >= 10, "{checked:?}");
    for it in &checked {
        assert!(it.predicted_s > 0.0 && it.measured_s > 0.0 && it.error().is_finite(), "{it:?}");
    }
}

#[test]
fn only_this_machine_can_be_measured() {
    let profile = Machine::two_tiers().unwrap();
    let Err(error) = Calibrator::new(&profile, SamplingPlan::QUICK, false) else { panic!("it is a profile") };
    assert!(matches!(error, CalibrateError::NotHere { .. }), "{error}");
}

#[test]
fn a_profile_without_figures_predicts_nothing() {
    let machine = Machine::discover().unwrap();
    let checked = Calibrator::new(&machine, SamplingPlan::QUICK, false).unwrap().check().unwrap();
    let error = checked.against(&Machine::two_tiers().unwrap()).unwrap_err().to_string();
    assert!(error.contains("not known") || error.contains("no node"), "{error}");
}
