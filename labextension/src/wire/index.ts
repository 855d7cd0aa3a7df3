/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

export * from './values';
export * from './circuits';
export * from './datasets';
export * from './direct';
export * from './graphs';
export * from './heads';
export * from './sweep';
export * from './messages';
export * from './base';
export * from './edits';
export * from './greeting';
export * from './looks';
export * from './modules';
export * from './nouns';
export * from './people';
export * from './pieces';
export * from './provenance';
export * from './readings';
export * from './running';
export * from './sessions';
export * from './weights';
export * from './events';
export * from './request';
export * from './reply';
export * from './answers';
export * from './protocol';
