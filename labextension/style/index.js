import './index.css';
import './sessions.css';
