/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

export * from './values';
export * from './edits';
export * from './holdings';
export * from './rules';
export * from './progress';
export * from './transfers';
export * from './access';
export * from './nouns';
export * from './readings';
export * from './interventions';
export * from './opening';
export * from './greeting';
export * from './listening';
export * from './watches';
export * from './requests';
export * from './attribution';
export * from './checkpoints';
export * from './sweeps';
export * from './heads';
export * from './scoring';
export * from './collecting';
export * from './replies';
export * from './events';
export * from './messages';
export * from './answers';
export * from './protocol';
